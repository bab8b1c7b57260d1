// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `rdmamr bench`.

use super::memory::Kind;
use crate::choices::number;
use std::path::PathBuf;

/// Measure what a registration costs on a device, by size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr bench
  rdmamr bench mlx5_0 --sizes 4K,2M,1G --rounds 100
  rdmamr bench --svg cost.svg
  rdmamr bench --large --sizes 1G,8G --threads 2,4,8 --kinds memfd,huge
  rdmamr bench --json | jq '.sizes[] | [.bytes, .plain_ratio, .relaxed_ratio]'

Ways: libibverbs alone; plain, ibv_reg_mr with the library in front; relaxed,
ibv_reg_mr_relaxed of memory that the library has kept registered. A figure is
the median of the rounds, of a registration together with its deregistration.")]
pub struct Args {
    /// The device; the first one if none is named
    pub device: Option<String>,
    /// Print JSON, see rdmamr(1)
    #[arg(long)]
    pub json: bool,
    /// Write a plot to FILE
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Sizes in bytes, also with K, M or G: by default 4K,64K,1M,16M,64M, with --large 1G
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    pub sizes: Option<Vec<u64>>,
    /// Rounds of each way at each size: by default 30, with --large 5
    #[arg(long, value_name = "N", value_parser = number(1, u32::MAX))]
    pub rounds: Option<u32>,
    /// Measure how fast untouched memory is registered, by kind, and its lower bounds
    #[arg(long)]
    pub large: bool,
    /// With --large: numbers of threads (RDMAMR_PREFAULT)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = number(1, 64), requires = "large")]
    pub threads: Vec<u32>,
    /// With --large: kinds of memory, by default all
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "large")]
    pub kinds: Vec<Kind>,
}

/// A number of bytes: 4096, 64K, 1M, 2G.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|&bytes| bytes > 0 && bytes < 1 << 46)
        .ok_or_else(|| "a size is a number such as 4096, 64K, 1M or 2G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64k"), Ok(65536));
        assert_eq!(size("2G"), Ok(2 << 30));
        for wrong in ["", "K", "0", "-1", "1T", "99999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
