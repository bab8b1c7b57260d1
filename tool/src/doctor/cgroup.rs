// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of this process's control groups that a registration can meet: memory, huge pages,
//! objects of RDMA devices, cgroups(7). Both versions of the interface.

use super::check::Check;
use crate::files::{names, read};
use crate::limit::Limit;
use crate::report::units::bytes;
use std::path::{Path, PathBuf};

const SUBJECT: &str = "cgroup";
/// Less memory than this is little compared with the registrations of a program.
const LITTLE: u64 = 1 << 30;

const MORE_MEMORY: &str = "echo max | sudo tee GROUP/memory.max (docker run --memory=..., resources.limits of a pod, \
                           srun --mem=..., systemctl set-property UNIT MemoryMax=...)";
const MORE_HUGE_PAGES: &str = "echo max | sudo tee GROUP/hugetlb.SIZE.max";
/// What the rdma controller limits, and whether in bytes. `mr_mem` is of a proposal of 2026 (linux-rdma,
/// "cgroup/rdma: add MR memory size resource tracking"), which no kernel at hand has.
const RDMA: [(&str, bool); 2] = [("hca_object", false), ("mr_mem", true)];

/// Looks for a limit in the group of this process and in those around it.
pub fn check() -> Check {
    let (mut limits, mut tight, mut fixes) = (Vec::new(), Vec::new(), Vec::new());
    for Limit { used, most, .. } in memory("self") {
        limits.push(format!("memory.max {}, {} used", bytes(most), bytes(used)));
        if most.saturating_sub(used) < LITTLE {
            tight.push(
                "Registered memory is charged to the group: at memory.max the kernel kills the process \
                 (SIGKILL), without an errno.",
            );
            fixes.push(MORE_MEMORY.into());
        }
    }
    for group in groups("self", "hugetlb") {
        for (size, most) in huge_limits(&group) {
            let names = ["current", "usage_in_bytes"].map(|end| format!("hugetlb.{size}.{end}"));
            let used = number(&group, &names).unwrap_or(0);
            let (is_full, most, used) = (used >= most, bytes(most), bytes(used));
            limits.push(format!("hugetlb.{size}.max {most}, {used} used"));
            if is_full {
                tight.push("Registering huge pages that are not populated yet fails with EFAULT.");
                fixes.push(MORE_HUGE_PAGES.into());
            }
        }
    }
    for limit in rdma("self") {
        let device = limit.device.as_deref().unwrap_or_default();
        let (what, least) = match limit.bytes {
            true => ("registered", LITTLE),
            false => ("objects", 1),
        };
        limits.push(format!("rdma.max of {device}: {limit} {what}"));
        if limit.most.saturating_sub(limit.used) < least {
            tight.push("Beyond that, registering memory or creating a queue or a domain fails with EAGAIN.");
            fixes.push(format!(
                "echo {device} {}=max | sudo tee GROUP/rdma.max",
                limit.name
            ));
        }
    }
    let unseen = ["memory", "hugetlb", "rdma"].into_iter();
    let unseen: Vec<_> = unseen.filter(|it| groups("self", it).is_empty()).collect();
    if !unseen.is_empty() {
        let unseen = unseen.join(", ");
        limits.push(format!(
            "not known: the limits of {unseen}: their cgroup is not mounted here"
        ));
    } else if limits.is_empty() {
        return Check::ok(SUBJECT, "no limit on memory, huge pages or device objects");
    }
    tight.dedup();
    fixes.dedup();
    let found = limits.join("; ");
    if tight.is_empty() {
        return Check::ok(SUBJECT, found);
    }
    Check::warning(SUBJECT, found)
        .meaning(tight.join(" "))
        .fix(fixes.join("; "))
}

/// The memory that each limited group of a process may have. The process is a number, or `self`.
pub fn memory(process: &str) -> Vec<Limit> {
    let limit = |group: PathBuf| {
        let used = number(&group, &["memory.current", "memory.usage_in_bytes"]).unwrap_or(0);
        let most = number(&group, &["memory.max", "memory.limit_in_bytes"])?;
        // Without a limit version 1 shows the largest multiple of a page.
        (most < 1 << 60).then(|| Limit::of_bytes("memory.max", used, most))
    };
    let groups = groups(process, "memory").into_iter();
    groups.filter_map(limit).collect()
}

/// What each group of a process may have of each device.
pub fn rdma(process: &str) -> Vec<Limit> {
    let limits = groups(process, "rdma").into_iter().flat_map(|group| {
        let lines = |name| read(group.join(name)).unwrap_or_default();
        rdma_in(&lines("rdma.max"), &lines("rdma.current"))
    });
    limits.collect()
}

fn rdma_in(max: &str, current: &str) -> Vec<Limit> {
    let limits = max.lines().flat_map(|line| {
        let device = line.split(' ').next().unwrap_or_default();
        let mut lines = current.lines();
        let used = lines.find(|line| line.split(' ').next() == Some(device));
        RDMA.into_iter().filter_map(move |(name, bytes)| {
            Some(Limit {
                name: name.into(),
                device: Some(device.to_owned()),
                bytes,
                // A device that the group has not used yet has no line.
                used: used.and_then(|line| of_line(line, name)).unwrap_or(0),
                most: of_line(line, name)?,
            })
        })
    });
    limits.collect()
}

/// The folders of a process's group and those around it, as far as they are shown here.
fn groups(process: &str, controller: &str) -> Vec<PathBuf> {
    let mine = read(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    groups_in(&mine, &mounts, controller)
}

fn groups_in(mine: &str, mounts: &str, controller: &str) -> Vec<PathBuf> {
    let has = |words: &str| words.split(',').any(|word| word == controller);
    // "4:memory:/path", or, of version 2, "0::/path".
    let rows = || mine.lines().map(|line| line.splitn(3, ':').skip(1));
    let parts = rows().map(|mut row| (row.next().unwrap_or_default(), row.next().unwrap_or("/")));
    let parts: Vec<_> = parts.collect();
    let old = parts.iter().find(|row| has(row.0));
    let Some(path) = old.or_else(|| parts.iter().find(|row| row.0.is_empty())) else {
        return Vec::new();
    };
    let mount = mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let kind = system.next()?;
        let is_it = match old {
            Some(_) => kind == "cgroup" && has(system.nth(1)?),
            None => kind == "cgroup2",
        };
        let mut place = place.split(' ').skip(3);
        is_it.then_some((place.next()?, place.next()?))
    });
    let Some((root, place)) = mount else {
        return Vec::new();
    };
    let place = Path::new(place);
    let below = Path::new(path.1).strip_prefix(root);
    let folder = place.join(below.unwrap_or(Path::new("")));
    let groups = folder.ancestors().take_while(|it| it.starts_with(place));
    groups.map(Path::to_owned).collect()
}

/// The number in the first of these files that has one; `None` for "max".
fn number(group: &Path, names: &[impl AsRef<Path>]) -> Option<u64> {
    let values = names.iter().filter_map(|name| read(group.join(name)));
    values.into_iter().next()?.parse().ok()
}

/// The sizes of huge pages that a group limits, and their limits.
fn huge_limits(group: &Path) -> Vec<(String, u64)> {
    let limits = names(group).into_iter().filter_map(|name| {
        let size = name.strip_prefix("hugetlb.")?;
        let mut ends = [".max", ".limit_in_bytes"].into_iter();
        let size = ends.find_map(|end| size.strip_suffix(end))?;
        let most = number(group, &[&name])?;
        let is_plain = !size.contains('.') && most < 1 << 60;
        is_plain.then(|| (size.to_owned(), most))
    });
    limits.collect()
}

/// A number in "mlx5_0 hca_handle=2 hca_object=2000".
fn of_line(line: &str, name: &str) -> Option<u64> {
    let mut words = line.split(' ').filter_map(|word| word.split_once('='));
    words.find(|word| word.0 == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions() {
        let folders = |mine, mounts, controller| -> Vec<String> {
            let found = groups_in(mine, mounts, controller);
            found
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect()
        };
        let new = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            folders("0::/a/b", new, "memory"),
            ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
        );
        let old = "36 25 0:31 /a /sys/x rw shared:9 - cgroup cgroup rw,cpu,memory";
        assert_eq!(
            folders("4:cpu,memory:/a/b\n0::/", old, "memory"),
            ["/sys/x/b", "/sys/x"]
        );
        assert!(folders("4:cpu,memory:/a/b\n0::/", old, "rdma").is_empty());
        assert!(folders("", "", "memory").is_empty());
    }

    #[test]
    fn lines_of_the_rdma_controller() {
        let limits = |max, current| -> Vec<String> {
            let limits = rdma_in(max, current).into_iter();
            limits
                .map(|limit| format!("{} {:?}: {limit}", limit.name, limit.device))
                .collect()
        };
        let max = "mlx5_0 hca_handle=2 hca_object=2000\nrxe0 hca_handle=max hca_object=max";
        let current = "rxe0 hca_handle=1 hca_object=9\nmlx5_0 hca_handle=1 hca_object=12";
        assert_eq!(
            limits(max, current),
            ["hca_object Some(\"mlx5_0\"): 12 of 2000"]
        );
        assert_eq!(limits(max, ""), ["hca_object Some(\"mlx5_0\"): 0 of 2000"]);
        // As the proposal of mr_mem writes it.
        let max = "mlx5_0 hca_handle=max hca_object=max mr_mem=1073741824";
        let current = "mlx5_0 hca_handle=1 hca_object=4 mr_mem=1048576";
        assert_eq!(
            limits(max, current),
            ["mr_mem Some(\"mlx5_0\"): 1 MiB of 1 GiB"]
        );
    }
}
