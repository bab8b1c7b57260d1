// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function of libibverbs that a call needs, and the code that it returns.

use super::outcome::Error;
use core::ffi::c_int;
use errno::Errno;
use rdmamr_next::{Maker, Next};

/// The function of the libibverbs that opened a device; an error if libibverbs lacks the function.
pub fn require<F: Copy>(next: &Next<F>, maker: Maker) -> Result<F, Error> {
    next.by(maker).ok_or_else(|| Error::NoNext(next.name()))
}

/// The result of a call of libibverbs that returns 0 or an errno.
pub fn done(code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        errno => Err(Error::Next(Errno(errno))),
    }
}
