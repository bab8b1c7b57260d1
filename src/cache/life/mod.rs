// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life of a region: a hit takes it, a miss makes, pins and keeps it, a change of its memory
//! invalidates it, its last user releases it, and it ends: by a flush, by age, by a limit, with its
//! domain or device, or because its memory changed.

pub mod change;
pub mod cleaner;
pub mod cleaner_thread;
pub mod device_files;
pub mod ending;
pub mod flush;
pub mod hit;
pub mod limits;
pub mod miss;
pub mod owners;
pub mod release;
