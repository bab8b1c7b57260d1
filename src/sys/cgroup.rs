// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of this process's control groups, cgroups(7): memory, processors, and objects of RDMA
//! devices. Both versions of the interface are read, below /sys/fs/cgroup. A limit that cannot be read
//! is not known, and counts as none: a container may hide the groups around its own. There the path of
//! the group leads nowhere, and its mount is the group.
//!
//! The functions allocate nothing, and the threads of `helper_thread.rs` may call them. They also
//! run on the smallest stack of a thread (`ctests/cache/processes/stacks.c`): paths are
//! short.

use super::proc::{each_line, number};
use super::text::Text;

/// The smallest limit of memory that applies to this process, in bytes.
pub fn memory_limit() -> Option<u64> {
    let mut least = None;
    each_group(b"memory", &mut |group| {
        let names: &[&[u8]] = match group.version {
            1 => &[b"memory.limit_in_bytes"],
            _ => &[b"memory.max", b"memory.high"],
        };
        for name in names {
            smaller(&mut least, group.first(name, number));
        }
    });
    least
}

const NO_LIMIT: u64 = i64::MAX as u64 / 2;

/// How many bytes of memory the fullest group of this process has, and how many it may have: of those
/// that have a limit. Pages of files that the kernel could drop count as free.
pub fn memory_used() -> Option<(u64, u64)> {
    let mut fullest: Option<(u64, u64)> = None;
    each_group(b"memory", &mut |group| {
        const OLD: [&[u8]; 4] = [
            b"memory.usage_in_bytes",
            b"memory.limit_in_bytes",
            b"total_active_file ",
            b"total_inactive_file ",
        ];
        const NEW: [&[u8]; 4] = [
            b"memory.current",
            b"memory.max",
            b"active_file ",
            b"inactive_file ",
        ];
        let [used, most, files @ ..] = if group.version == 1 { OLD } else { NEW };
        let values = [most, used].map(|name| group.first(name, number));
        // Version 1 has a number for no limit.
        let [Some(most @ ..NO_LIMIT), Some(mut used)] = values else {
            return;
        };
        group.each_line(b"memory.stat", &mut |line| {
            let of_files = |name: &&[u8]| line.strip_prefix(*name).and_then(number);
            used = used.saturating_sub(files.iter().find_map(of_files).unwrap_or(0));
        });
        let left = |(used, most): (u64, u64)| most.saturating_sub(used);
        if fullest.is_none_or(|other| left((used, most)) < left(other)) {
            fullest = Some((used, most));
        }
    });
    fullest
}

/// How many processors' time the groups of this process may use (`cpu.max`), rounded up.
pub fn processors() -> Option<u64> {
    let mut least = None;
    each_group(b"cpu", &mut |group| {
        let [quota, period]: [(&[u8], usize); 2] = match group.version {
            1 => [(b"cpu.cfs_quota_us", 0), (b"cpu.cfs_period_us", 0)],
            _ => [(b"cpu.max", 0), (b"cpu.max", 1)],
        };
        let mut value = |(name, word)| {
            group.first(name, |line| {
                line.split(|&byte| byte == b' ').nth(word).and_then(number)
            })
        };
        let both = value(quota).zip(value(period));
        smaller(
            &mut least,
            both.map(|(quota, period)| quota.div_ceil(period.max(1))),
        );
    });
    least
}

/// How many bytes of huge pages of this size a group of this process has, used or reserved, and how many
/// it may have, if it may have no further page.
pub fn huge_pages_reached(page: u64) -> Option<(u64, u64)> {
    let power = (page.trailing_zeros() / 10).min(3);
    let (count, unit) = (
        page >> (10 * power),
        ["B", "KB", "MB", "GB"][power as usize],
    );
    let mut reached = None;
    each_group(b"hugetlb", &mut |group| {
        let names = match group.version {
            1 => ["usage_in_bytes", "limit_in_bytes"],
            _ => ["current", "max"],
        };
        for of in ["rsvd.", ""] {
            let values = names.map(|name| {
                let mut path = Text::<48>::new();
                let path = path.set(format_args!("hugetlb.{count}{unit}.{of}{name}"))?;
                group.first(path.to_bytes(), number)
            });
            match values {
                [Some(used), Some(most)] if used.saturating_add(page) > most => {
                    reached = Some((used, most))
                }
                _ => {}
            }
        }
    });
    reached
}

/// What a line of `rdma.max` limits beside the handles; not every kernel has `mr_mem`, the registered
/// memory.
const LIMITED: [&[u8]; 2] = [b"hca_object=", b"mr_mem="];

/// Calls `each` for the lines of `rdma.max` that limit a device's objects or memory, with the path of
/// the group, and says whether that group has as much.
pub fn each_limit_of_rdma(mut each: impl FnMut(&[u8], &[u8], bool)) {
    each_group(b"rdma", &mut |group| {
        for wanted in 0.. {
            let (mut limit, mut number) = (Text::<192>::new(), 0);
            group.each_line(b"rdma.max", &mut |line| {
                if LIMITED.iter().any(|name| amount(line, name).is_some()) {
                    if number == wanted {
                        limit.push(line);
                    }
                    number += 1;
                }
            });
            let limit = limit.as_bytes();
            if limit.is_empty() {
                return;
            }
            let mut is_reached = false;
            group.each_line(b"rdma.current", &mut |used| {
                is_reached |= device_of(used) == device_of(limit)
                    && LIMITED.iter().any(|name| {
                        let most = amount(limit, name);
                        most.is_some() && amount(used, name) >= most
                    });
            });
            each(&group.folder.as_bytes()[group.mount..], limit, is_reached);
        }
    });
}

/// How many more objects (`hca_object`) of this device the process may make.
pub fn objects_left(device: &[u8]) -> Option<u64> {
    let mut least = None;
    each_group(b"rdma", &mut |group| {
        let of_device = |line: &[u8]| objects(line, device);
        let most = group.first(b"rdma.max", of_device);
        // A device that the group has not used yet has no line.
        let used = most.and_then(|_| group.first(b"rdma.current", of_device));
        let left = most.map(|most| most.saturating_sub(used.unwrap_or(0)));
        smaller(&mut least, left);
    });
    least
}

fn smaller(least: &mut Option<u64>, other: Option<u64>) {
    *least = least.iter().copied().chain(other).min();
}

fn device_of(line: &[u8]) -> &[u8] {
    line.split(|&byte| byte == b' ').next().unwrap_or_default()
}

/// The number after such a name in a line: "mlx5_0 hca_handle=2 hca_object=2000".
fn amount(line: &[u8], name: &[u8]) -> Option<u64> {
    let mut words = line.split(|&byte| byte == b' ');
    words.find_map(|word| number(word.strip_prefix(name)?))
}

/// The number of objects in a line about this device.
fn objects(line: &[u8], device: &[u8]) -> Option<u64> {
    amount(line, LIMITED[0]).filter(|_| device_of(line) == device)
}

/// A group as a folder.
struct Group {
    version: u32,
    folder: Text<1024>,
    /// The length of the mount point, with which `folder` begins.
    mount: usize,
}

/// Calls `each` for the group of this process in the hierarchy that has this controller, and for
/// those that it lies in.
#[inline(never)]
fn each_group(controller: &[u8], each: &mut dyn FnMut(&mut Group)) {
    let mut group = Group {
        version: 0,
        folder: Text::new(),
        mount: 0,
    };
    if group.find(controller) {
        group.each_ancestor(each);
    }
}

impl Group {
    /// Becomes the group of this process in the hierarchy that has this controller.
    #[inline(never)]
    fn find(&mut self, controller: &[u8]) -> bool {
        // The first thread may have ended, and its folder in /proc then tells nothing.
        let _ = each_line(c"/proc/thread-self/cgroup", |line| {
            let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                return true;
            };
            let mut words = controllers.split(|&byte| byte == b',');
            let is_old = words.any(|word| word == controller);
            if is_old || controllers.is_empty() && self.version == 0 {
                self.version = if is_old { 1 } else { 2 };
                self.folder.clear();
                let fits = self.folder.push(b"/sys/fs/cgroup")
                    && (!is_old || self.folder.push(b"/") && self.folder.push(controller));
                self.mount = self.folder.as_bytes().len();
                if !fits || path != b"/" && !self.folder.push(path) {
                    self.version = 0;
                }
            }
            true
        });
        self.version != 0
    }

    /// Calls `each` for the group and those that it lies in.
    fn each_ancestor(&mut self, each: &mut dyn FnMut(&mut Group)) {
        loop {
            each(self);
            let path = self.folder.as_bytes();
            if path.len() <= self.mount {
                return;
            }
            let parent = path.iter().rposition(|&byte| byte == b'/');
            self.folder.cut(parent.unwrap_or(0).max(self.mount));
        }
    }

    /// The first number that `find` has for a line of a file of the group.
    fn first(&mut self, name: &[u8], find: impl Fn(&[u8]) -> Option<u64>) -> Option<u64> {
        let mut found = None;
        self.each_line(name, &mut |line| found = found.or_else(|| find(line)));
        found
    }

    /// Calls `each` for the lines of a file of the group. A file that cannot be read has none.
    fn each_line(&mut self, name: &[u8], each: &mut dyn FnMut(&[u8])) {
        let folder = self.folder.as_bytes().len();
        if self.folder.push(b"/") && self.folder.push(name) {
            if let Some(path) = self.folder.as_c_str() {
                let _ = each_line(path, |line| {
                    each(line.trim_ascii_end());
                    true
                });
            }
        }
        self.folder.cut(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_rdma_controller() {
        let line = b"mlx5_0 hca_handle=2 hca_object=2000";
        assert_eq!(objects(line, b"mlx5_0"), Some(2000));
        assert_eq!(objects(line, b"mlx5_1"), None);
        assert_eq!(
            objects(b"rxe0 hca_handle=max hca_object=max", b"rxe0"),
            None
        );
        let line = b"rxe0 hca_handle=2 hca_object=max mr_mem=4096";
        assert_eq!(LIMITED.map(|name| amount(line, name)), [None, Some(4096)]);
        assert_eq!(number(b"max"), None);
        assert_eq!(
            number(b"9223372036854771712"),
            Some(9_223_372_036_854_771_712)
        );
    }

    #[test]
    fn ancestors_end_at_the_mount() {
        let mut folder = Text::new();
        assert!(folder.push(b"/sys/fs/cgroup/a/b"));
        let mut group = Group {
            version: 2,
            folder,
            mount: b"/sys/fs/cgroup".len(),
        };
        let mut folders = Vec::new();
        group.each_ancestor(&mut |group| folders.push(group.folder.as_bytes().to_vec()));
        assert_eq!(
            folders,
            [
                &b"/sys/fs/cgroup/a/b"[..],
                b"/sys/fs/cgroup/a",
                b"/sys/fs/cgroup"
            ]
        );
    }

    #[test]
    fn fuzz_cgroup_text() {
        let samples: [&[u8]; 2] = [
            b"mlx5_0 hca_handle=2 hca_object=2000",
            b"rxe0 hca_handle=max hca_object=max",
        ];
        crate::fuzz_inputs::each("fuzz_cgroup_text", 2000, &samples, |line, _| {
            let _ = (objects(line, b"mlx5_0"), amount(line, LIMITED[1]));
            let _ = number(line);
        });
    }
}
