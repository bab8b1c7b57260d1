// SPDX-License-Identifier: MIT OR Apache-2.0
//! What C sees, one file for each header. A function here does four things, in this order, and no fifth:
//! it turns C's arguments into types, calls one function of the core, turns the result into its family's
//! return convention, and has a failure counted and its reason kept (`ret.rs`).

mod export;
mod fabric;
mod memory;
mod rdmamr;
mod relaxed;
mod ret;
mod traced;
mod verbs;
