// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of this process's control groups that a registration can meet: memory, huge pages,
//! objects of RDMA devices, cgroups(7). Both versions of the interface.

use super::check::Check;
use crate::files::{names, read};
use crate::report::units::bytes;
use std::path::{Path, PathBuf};

const SUBJECT: &str = "cgroup";
/// Less memory than this is little compared with the registrations of a program.
const LITTLE: u64 = 1 << 30;

const MORE_MEMORY: &str = "echo max | sudo tee GROUP/memory.max (docker run --memory=..., resources.limits of a pod, \
                           srun --mem=..., systemctl set-property UNIT MemoryMax=...)";
const MORE_HUGE_PAGES: &str = "echo max | sudo tee GROUP/hugetlb.SIZE.max";
const MORE_OBJECTS: &str = "echo DEVICE hca_object=max | sudo tee GROUP/rdma.max";

/// Looks for a limit in the group of this process and in those around it.
pub fn check() -> Check {
    let (mut limits, mut tight, mut fixes) = (Vec::new(), Vec::new(), Vec::new());
    for (used, most) in memory("self") {
        limits.push(format!("memory.max {}, {} used", bytes(most), bytes(used)));
        if most.saturating_sub(used) < LITTLE {
            tight.push(
                "Registered memory is charged to the group: at memory.max the kernel kills the process \
                 (SIGKILL), without an errno.",
            );
            fixes.push(MORE_MEMORY);
        }
    }
    for group in groups("self", "hugetlb") {
        for (size, most) in huge_limits(&group) {
            let names = ["current", "usage_in_bytes"].map(|end| format!("hugetlb.{size}.{end}"));
            let used = number(&group, &names).unwrap_or(0);
            limits.push(format!(
                "hugetlb.{size}.max {}, {} used",
                bytes(most),
                bytes(used)
            ));
            if used >= most {
                tight.push("Registering huge pages that are not populated yet fails with EFAULT.");
                fixes.push(MORE_HUGE_PAGES);
            }
        }
    }
    for (device, used, most) in rdma("self") {
        limits.push(format!("rdma.max of {device}: {used} of {most} objects"));
        if used >= most {
            tight
                .push("Creating another region, queue or domain on that device fails with EAGAIN.");
            fixes.push(MORE_OBJECTS);
        }
    }
    if limits.is_empty() {
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

/// The memory that each limited group of a process has used, and its limit. The process is a number,
/// or `self`.
pub fn memory(process: &str) -> Vec<(u64, u64)> {
    let limit = |group: PathBuf| {
        let used = number(&group, &["memory.current", "memory.usage_in_bytes"]).unwrap_or(0);
        let most = number(&group, &["memory.max", "memory.limit_in_bytes"])?;
        // Without a limit version 1 shows the largest multiple of a page.
        (most < 1 << 60).then_some((used, most))
    };
    let groups = groups(process, "memory").into_iter();
    groups.filter_map(limit).collect()
}

/// The objects of each device that each group of a process has used, and may use.
pub fn rdma(process: &str) -> Vec<(String, u64, u64)> {
    let mut limits = Vec::new();
    for group in groups(process, "rdma") {
        let lines = |name| read(group.join(name)).unwrap_or_default();
        let current = lines("rdma.current");
        for (device, most) in lines("rdma.max").lines().filter_map(objects) {
            let mut used = current.lines().filter_map(objects);
            let used = used.find(|used| used.0 == device);
            limits.push((device.to_owned(), used.map_or(0, |used| used.1), most));
        }
    }
    limits
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
    let below = Path::new(path.1)
        .strip_prefix(root)
        .unwrap_or(Path::new(""));
    let folder = place.join(below);
    folder
        .ancestors()
        .take_while(|folder| folder.starts_with(place))
        .map(Path::to_owned)
        .collect()
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
        let size = size
            .strip_suffix(".max")
            .or_else(|| size.strip_suffix(".limit_in_bytes"))?;
        let most = number(group, &[&name])?;
        let is_plain = !size.contains('.') && most < 1 << 60;
        is_plain.then(|| (size.to_owned(), most))
    });
    limits.collect()
}

/// The device and the number in "mlx5_0 hca_handle=2 hca_object=2000".
fn objects(line: &str) -> Option<(&str, u64)> {
    let mut words = line.split(' ');
    let device = words.next()?;
    let number = words.find_map(|word| word.strip_prefix("hca_object="))?;
    Some((device, number.parse().ok()?))
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
        assert_eq!(
            objects("mlx5_0 hca_handle=2 hca_object=2000"),
            Some(("mlx5_0", 2000))
        );
        assert_eq!(objects("rxe0 hca_handle=max hca_object=max"), None);
    }
}
