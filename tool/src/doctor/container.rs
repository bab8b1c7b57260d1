// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this process runs in a container, and under a batch system: these set its limits, so
//! their names tell how to change them.

use super::check::Check;
use crate::files::read;
use std::env;
use std::path::Path;

const SUBJECT: &str = "container";

/// A container runtime, and the way to raise RLIMIT_MEMLOCK in it.
pub struct Runtime {
    pub name: &'static str,
    /// Whether its sign is there, besides its name in the environment variable `container`.
    shows: fn() -> bool,
    /// How a process in it may pin more memory.
    pub memlock: &'static str,
}

/// Kubernetes comes first: its containers show the signs of the runtime below as well.
#[rustfmt::skip]
const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Kubernetes", shows: || env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        memlock: "on the node: systemctl edit containerd (or crio): [Service] LimitMEMLOCK=infinity; systemctl restart it",
    },
    Runtime {
        name: "Apptainer", shows: || env::var_os("APPTAINER_CONTAINER").is_some(),
        memlock: "ulimit -l unlimited (before apptainer starts: it passes the limit on)",
    },
    Runtime {
        name: "Podman", shows: || Path::new("/run/.containerenv").exists(),
        memlock: "podman run --ulimit memlock=-1 ... (rootless: the user's own hard limit is the most)",
    },
    Runtime {
        name: "Docker", shows: || Path::new("/.dockerenv").exists(),
        memlock: "docker run --ulimit memlock=-1 ...",
    },
    Runtime {
        name: "systemd-nspawn", shows: || false,
        memlock: "systemd-nspawn --rlimit=MEMLOCK=infinity ...",
    },
    Runtime {
        name: "LXC", shows: || false,
        memlock: "lxc.prlimit.memlock = unlimited (in the container's configuration)",
    },
];

/// The runtime of this process's container, if it runs in one.
pub fn runtime() -> Option<&'static Runtime> {
    let shown = RUNTIMES.iter().find(|runtime| (runtime.shows)());
    shown.or_else(|| {
        let word = name_of_runtime()?;
        RUNTIMES.iter().find(|runtime| is_called(runtime, &word))
    })
}

/// The name that the container's manager gives itself. systemd stores it in a file.
fn name_of_runtime() -> Option<String> {
    let mut files = ["/run/systemd/container", "/run/host/container-manager"].into_iter();
    env::var("container").ok().or_else(|| files.find_map(read))
}

/// Whether a container says of itself that this runtime runs it (systemd's CONTAINER_INTERFACE).
fn is_called(runtime: &Runtime, word: &str) -> bool {
    let name = runtime.name.to_lowercase();
    !word.is_empty() && name.starts_with(&word.to_lowercase())
}

/// Whether this process is part of a job of Slurm.
pub fn is_slurm_job() -> bool {
    env::var_os("SLURM_JOB_ID").is_some()
}

/// Says which container this is, and what limits its memory and its devices.
pub fn check() -> Check {
    let mut found = match runtime() {
        Some(runtime) => format!("this is a container of {}", runtime.name),
        None if name_of_runtime().is_some() => "this is a container of an unknown runtime".into(),
        None => "none".into(),
    };
    if is_slurm_job() {
        found += "; this is a job of Slurm";
    }
    let check = Check::ok(SUBJECT, &found);
    if found == "none" {
        return check;
    }
    check.meaning(
        "Its launcher sets the limits and filters: RLIMIT_MEMLOCK, cgroups, the seccomp profile, the devices.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_names_its_runtime() {
        let called = |word| {
            RUNTIMES
                .iter()
                .find(|runtime| is_called(runtime, word))
                .map(|runtime| runtime.name)
        };
        assert_eq!(called("podman"), Some("Podman"));
        assert_eq!(called("systemd-nspawn"), Some("systemd-nspawn"));
        assert_eq!(called("lxc"), Some("LXC"));
        assert_eq!(called("docker"), Some("Docker"));
        assert_eq!(called(""), None);
        assert_eq!(called("oci"), None);
    }
}
