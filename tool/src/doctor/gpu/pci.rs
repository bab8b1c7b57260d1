// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPUs and RDMA devices as sysfs shows PCI devices.

use crate::files::{names, read};
use std::fs;
use std::path::{Path, PathBuf};

/// A maker of GPUs whose memory can be exported: its number in sysfs, and its name.
pub type Vendor = (&'static str, &'static str);
pub const NVIDIA: Vendor = ("0x10de", "NVIDIA");
pub const AMD: Vendor = ("0x1002", "AMD");

/// The place of a PCI device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Domain, bus, device and function: "0000:17:00.0".
    pub address: String,
    /// Its folder below /sys/devices, which lies in the folders of the bridges above it.
    pub folder: PathBuf,
    /// Its NUMA node, if the firmware names one.
    pub node: Option<u32>,
}

pub struct Gpu {
    pub place: Place,
    pub vendor: Vendor,
    pub id: u64,
    pub driver: Option<String>,
    /// The size of the largest prefetchable BAR, through which other devices reach its memory.
    pub bar: Option<u64>,
    /// The size of its memory, if sysfs tells it.
    pub memory: Option<u64>,
}

/// The GPUs below a root, which is "/" or a test's folder, in the order of their addresses.
pub fn gpus(root: &Path) -> Vec<Gpu> {
    let folder = root.join("sys/bus/pci/devices");
    let links = names(&folder).into_iter().map(|name| folder.join(name));
    links.filter_map(|link| gpu(&link)).collect()
}

/// The place of an RDMA device. Soft-RoCE has none.
pub fn of_rdma(root: &Path, device: &str) -> Option<Place> {
    place(&root.join(format!("sys/class/infiniband/{device}/device")))
}

fn place(link: &Path) -> Option<Place> {
    let folder = fs::canonicalize(link).ok()?;
    Some(Place {
        address: folder.file_name()?.to_string_lossy().into_owned(),
        // The kernel says -1 if it does not know.
        node: read(folder.join("numa_node")).and_then(|node| node.parse().ok()),
        folder,
    })
}

fn gpu(link: &Path) -> Option<Gpu> {
    const DISPLAY: u64 = 0x03;
    const ACCELERATOR: u64 = 0x12;
    let vendor = read(link.join("vendor"))?;
    let number = |name| hexadecimal(&read(link.join(name))?);
    if !matches!(number("class")? >> 16, DISPLAY | ACCELERATOR) {
        return None;
    }
    let driver = fs::read_link(link.join("driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    Some(Gpu {
        place: place(link)?,
        vendor: [NVIDIA, AMD].into_iter().find(|of| of.0 == vendor)?,
        id: number("device")?,
        driver,
        bar: read(link.join("resource")).and_then(|text| largest_bar(&text)),
        memory: read(link.join("mem_info_vram_total")).and_then(|size| size.parse().ok()),
    })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The size of the largest prefetchable BAR in a file `resource`, whose lines are START END FLAGS.
fn largest_bar(resource: &str) -> Option<u64> {
    const BARS: usize = 6;
    const IORESOURCE_PREFETCH: u64 = 0x2000;
    let sizes = resource.lines().take(BARS).filter_map(|line| {
        let mut numbers = line.split(' ').map(hexadecimal);
        let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        (flags & IORESOURCE_PREFETCH != 0 && end > start).then_some(end - start + 1)
    });
    sizes.max()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A root with PCI devices of the test.
    pub struct Fake {
        folder: TempDir,
    }

    impl Fake {
        pub fn new() -> Fake {
            Fake {
                folder: TempDir::new().unwrap(),
            }
        }

        pub fn root(&self) -> &Path {
            self.folder.path()
        }

        pub fn gpus(&self) -> Vec<Gpu> {
            gpus(self.root())
        }

        /// Writes a file.
        pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        pub fn link(&self, from: &str, to: &str) {
            let from = self.folder.path().join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(self.folder.path().join(to), from).unwrap();
        }

        /// Adds a PCI device at a path such as "pci0000:17/0000:17:01.0/0000:18:00.0".
        pub fn device(&self, path: &str, files: &[(&str, &str)]) {
            let folder = format!("sys/devices/{path}");
            for (name, content) in files {
                self.write(&format!("{folder}/{name}"), content);
            }
            let address = path.rsplit('/').next().unwrap();
            self.link(&format!("sys/bus/pci/devices/{address}"), &folder);
        }

        pub fn gpu(&self, path: &str, vendor: &str, node: &str) {
            let bars = "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n\
                        0x0000380000000000 0x0000381fffffffff 0x000000000014220c\n";
            self.device(
                path,
                &[
                    ("vendor", vendor),
                    ("device", "0x2330"),
                    ("class", "0x030200"),
                    ("numa_node", node),
                    ("resource", bars),
                ],
            );
        }

        pub fn nic(&self, name: &str, path: &str, node: &str) {
            let files = [
                ("vendor", "0x15b3"),
                ("device", "0x1021"),
                ("class", "0x020700"),
                ("numa_node", node),
            ];
            self.device(path, &files);
            self.link(
                &format!("sys/class/infiniband/{name}/device"),
                &format!("sys/devices/{path}"),
            );
        }
    }

    #[test]
    fn gpus_are_known_by_class_and_vendor() {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", "0x10de", "0");
        fake.gpu("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "0x1002", "-1");
        fake.link(
            "sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/driver",
            "sys/bus/pci/drivers/nvidia",
        );
        fake.write(
            "sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0/mem_info_vram_total",
            "1024",
        );
        // A bridge of NVIDIA's, and a display of another vendor.
        fake.device(
            "pci0000:17/0000:19:00.0",
            &[
                ("vendor", "0x10de"),
                ("device", "0x22a3"),
                ("class", "0x068000"),
            ],
        );
        fake.device(
            "pci0000:17/0000:1a:00.0",
            &[
                ("vendor", "0x1a03"),
                ("device", "0x2000"),
                ("class", "0x030000"),
            ],
        );
        fake.nic("mlx5_0", "pci0000:17/0000:17:02.0/0000:1b:00.0", "0");
        let gpus = fake.gpus();
        let shown: Vec<_> = gpus
            .iter()
            .map(|gpu| {
                (
                    gpu.place.address.as_str(),
                    gpu.vendor,
                    gpu.place.node,
                    gpu.driver.as_deref(),
                    gpu.memory,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("0000:18:00.0", NVIDIA, Some(0), Some("nvidia"), None),
                ("0000:c1:00.0", AMD, None, None, Some(1024)),
            ]
        );
        assert_eq!(gpus[0].bar, Some(128 << 30));
        assert_eq!(
            of_rdma(fake.root(), "mlx5_0").unwrap().address,
            "0000:1b:00.0"
        );
        assert_eq!(of_rdma(fake.root(), "rxe0"), None);
    }
}
