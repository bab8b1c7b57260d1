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
    /// The sign of the runtime, besides its name in the environment variable `container`.
    sign: Sign,
    /// How a process in it may pin more memory.
    pub memlock: &'static str,
}

enum Sign {
    Name,
    Variable(&'static str),
    File(&'static str),
}

/// Kubernetes comes first: its containers show the signs of the runtime below as well.
#[rustfmt::skip]
const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Kubernetes", sign: Sign::Variable("KUBERNETES_SERVICE_HOST"),
        memlock: "on the node: systemctl edit containerd (or crio): [Service] LimitMEMLOCK=infinity; systemctl restart it",
    },
    Runtime {
        name: "Apptainer", sign: Sign::Variable("APPTAINER_CONTAINER"),
        memlock: "ulimit -l unlimited (before apptainer starts: it passes the limit on)",
    },
    Runtime {
        name: "Podman", sign: Sign::File("/run/.containerenv"),
        memlock: "podman run --ulimit memlock=-1 ... (rootless: the user's own hard limit is the most)",
    },
    Runtime {
        name: "Docker", sign: Sign::File("/.dockerenv"),
        memlock: "docker run --ulimit memlock=-1 ...",
    },
    Runtime {
        name: "systemd-nspawn", sign: Sign::Name,
        memlock: "systemd-nspawn --rlimit=MEMLOCK=infinity ...",
    },
    Runtime {
        name: "LXC", sign: Sign::Name,
        memlock: "lxc.prlimit.memlock = unlimited (in the container's configuration)",
    },
];

/// The runtime of this process's container, if it runs in one.
pub fn runtime() -> Option<&'static Runtime> {
    let shows = |runtime: &&Runtime| match runtime.sign {
        Sign::Variable(name) => env::var_os(name).is_some(),
        Sign::File(path) => Path::new(path).exists(),
        Sign::Name => false,
    };
    RUNTIMES.iter().find(shows).or_else(|| {
        let word = name_of_runtime()?;
        RUNTIMES.iter().find(|runtime| is_called(runtime, &word))
    })
}

/// The name that the container's manager gives itself. systemd stores it in a file.
fn name_of_runtime() -> Option<String> {
    env::var("container")
        .ok()
        .or_else(|| read("/run/systemd/container"))
        .or_else(|| read("/run/host/container-manager"))
}

/// Whether a container says of itself that this runtime runs it (systemd's CONTAINER_INTERFACE).
fn is_called(runtime: &Runtime, word: &str) -> bool {
    !word.is_empty()
        && runtime
            .name
            .to_lowercase()
            .starts_with(&word.to_lowercase())
}

/// Whether this process is part of a job of Slurm.
pub fn is_slurm_job() -> bool {
    env::var_os("SLURM_JOB_ID").is_some()
}

/// Whether the control groups alone show that this is a container.
fn has_group_of_container() -> bool {
    let groups = read("/proc/1/cgroup").unwrap_or_default();
    ["docker", "kubepods", "libpod", "containerd", "crio", "lxc"]
        .iter()
        .any(|word| groups.contains(word))
}

/// Says which container this is, and what limits its memory and its devices.
pub fn check() -> Check {
    let mut found = match runtime() {
        Some(runtime) => format!("this is a container of {}", runtime.name),
        None if name_of_runtime().is_some() || has_group_of_container() => {
            "this is a container of an unknown runtime".into()
        }
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
