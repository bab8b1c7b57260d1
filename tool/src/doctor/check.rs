// SPDX-License-Identifier: MIT OR Apache-2.0
//! A finding of the doctor, and how bad it is.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// It works, but not as well as it could.
    Warning,
    /// It does not work.
    Failure,
}

/// A line of the answer. The fields are those of the JSON, which scripts read, so their names stay.
#[derive(Serialize)]
pub struct Check {
    /// The subject: "device", "driver", "memlock" and so on.
    pub subject: &'static str,
    /// The device, if the check is about one.
    pub device: Option<String>,
    pub state: State,
    /// The finding.
    pub found: String,
    /// The consequence for registration.
    pub meaning: Option<String>,
    /// The command that changes it.
    pub fix: Option<String>,
}

impl Check {
    fn new(subject: &'static str, state: State, found: impl Into<String>) -> Check {
        Check {
            subject,
            device: None,
            state,
            found: found.into(),
            meaning: None,
            fix: None,
        }
    }

    pub fn ok(subject: &'static str, found: impl Into<String>) -> Check {
        Check::new(subject, State::Ok, found)
    }

    pub fn warning(subject: &'static str, found: impl Into<String>) -> Check {
        Check::new(subject, State::Warning, found)
    }

    pub fn failure(subject: &'static str, found: impl Into<String>) -> Check {
        Check::new(subject, State::Failure, found)
    }

    pub fn of(mut self, device: &str) -> Check {
        self.device = Some(device.into());
        self
    }

    pub fn meaning(mut self, meaning: impl Into<String>) -> Check {
        self.meaning = Some(meaning.into());
        self
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Check {
        self.fix = Some(fix.into());
        self
    }
}

/// The reason why a way does not work, and what helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    pub why: String,
    pub fix: String,
}

pub fn obstacle<T>(why: impl Into<String>, fix: impl Into<String>) -> Result<T, Obstacle> {
    let (why, fix) = (why.into(), fix.into());
    Err(Obstacle { why, fix })
}
