// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populating memory during its registration, and reporting registrations that take long.
//!
//! The kernel pins the pages of a registration one after the other, on one core. It must first find
//! and clear each page that was never touched, which takes 1 us for 4 KiB. With `RDMAMR_PREFAULT=N`
//! helper threads join in: while the kernel pins from the start, N - 1 threads populate from the
//! end (`team.rs`), on the memory's own node (`nodes.rs`). They populate only pages that the pin
//! would have made (`suitable.rs`, `kind.rs`), so that only the time differs. They leave every
//! failure to the registration itself.
//!
//! The helpers run beside the registration, not before it: the registering thread then makes the
//! pages that it needs next and pins them at once. To populate all of 1 GiB with two threads and
//! pin it afterwards took a sixth longer. NVIDIA's driver, however, holds the mmap lock during its
//! whole pin: beside `cudaHostRegister` the helpers gained nothing, and before it they do.

mod around;
mod huge;
mod kind;
mod nodes;
mod pages;
mod progress;
mod suitable;
mod team;

pub use around::{around, is_large};
pub use huge::{has_split, join};
pub use pages::Pin;
pub use team::MOST as MOST_THREADS;
