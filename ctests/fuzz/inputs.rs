// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inputs for the fuzz targets in Rust, unit tests whose names begin with `fuzz_`: samples, each
//! tried as it is and then mutated at random. The number of an input determines it, so each run has
//! the same inputs. A plain run tries a few, or goes on for FUZZ_SECONDS. FUZZ_FROM is the number
//! of the first input: a failure prints it. `ctests/run fuzz` has libFuzzer choose the inputs
//! instead.
//!
//! The samples are those of the target and those of `ctests/fuzz/corpus`, which libFuzzer found: an
//! archive for each target (`ctests/fuzz/archive`), which `tar` unpacks.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[cfg(fuzzing)]
#[path = "guided.rs"]
mod guided;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Numbers of SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Says which input it was, if the target panics.
struct Tried(u64);

impl Drop for Tried {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FUZZ_FROM={} repeats the input", self.0);
        }
    }
}

/// Calls the target with the samples and `few` inputs made of them, or for FUZZ_SECONDS.
pub fn each(name: &str, few: u64, samples: &[&[u8]], mut target: impl FnMut(&[u8], &mut Random)) {
    #[cfg(fuzzing)]
    guided::run(name, samples, &mut target);
    let found = corpus(name);
    let samples: Vec<&[u8]> = found
        .iter()
        .map(Vec::as_slice)
        .chain(samples.iter().copied())
        .collect();
    let end = setting("FUZZ_SECONDS").map(|some| Instant::now() + Duration::from_secs(some));
    let few = samples.len() as u64 + few;
    let from = setting("FUZZ_FROM").unwrap_or(0);
    let mut tried = Tried(from);
    while end.map_or(tried.0 < from + few, |end| Instant::now() < end) {
        let mut random = Random::new(tried.0);
        let input = match samples.get(tried.0 as usize) {
            Some(sample) => sample.to_vec(),
            None => changed(&samples, &mut random),
        };
        target(&input, &mut random);
        tried.0 += 1;
    }
    println!("{name}: {} executions", tried.0 - from);
}

/// The tree's inputs that reach more of the target than its samples do.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    // Three packages include this file, at different depths.
    let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|above| {
            above
                .join("ctests/fuzz/corpus")
                .join(name)
                .with_extension("tar.xz")
        })
        .find(|archive| archive.is_file());
    let Some(archive) = archive else {
        return Vec::new();
    };
    let folder = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(archive).arg("-C").arg(&folder);
    assert!(tar.status().unwrap().success(), "{tar:?}");
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let found = files.iter().map(|file| std::fs::read(file).unwrap());
    let found = found.collect();
    std::fs::remove_dir_all(&folder).unwrap();
    found
}

/// A sample with up to eight changes.
fn changed(samples: &[&[u8]], random: &mut Random) -> Vec<u8> {
    const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
    const WORDS: [&[u8]; 8] = [
        b"18446744073709551615",
        b"ffffffffffffffff",
        b"-1",
        b"\0",
        b" ",
        b"/../",
        b"\xff\xfe",
        b"\\777",
    ];
    let mut input = samples[random.below(samples.len())].to_vec();
    for _ in 0..random.below(9) {
        let at = random.below(input.len() + 1);
        let until = (at + 1 + random.below(24)).min(input.len());
        match random.below(8) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next() as u8,
            2 => drop(input.drain(at..until.max(at))),
            3 => {
                let copy = input[at..until.max(at)].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            4 => {
                let edge = (EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64))
                    .to_le_bytes();
                let size = (1 << random.below(4)).min(input.len() - at.min(input.len()));
                input[at..at + size].copy_from_slice(&edge[..size]);
            }
            5 => {
                let word = WORDS[random.below(WORDS.len())];
                input.splice(at..at, word.iter().copied());
            }
            6 if random.below(4) == 0 => input.truncate(at),
            _ => {
                let other = samples[random.below(samples.len())];
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    input
}
