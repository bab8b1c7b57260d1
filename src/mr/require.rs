// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function of libibverbs that a call needs.

use super::outcome::Error;
use rdmamr_next::{Next, Provider};

/// The function of the libibverbs that opened a device; an error if libibverbs lacks the function.
pub fn require<F: Copy>(next: &Next<F>, provider: Provider) -> Result<F, Error> {
    next.by(provider).ok_or_else(|| Error::NoNext(next.name()))
}
