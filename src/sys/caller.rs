// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller of an exported function: the address that the call returns to, for the trace.

use super::unwind;

/// The return address of a call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Caller(usize);

impl Caller {
    /// No known caller.
    pub const UNKNOWN: Caller = Caller(0);

    /// The caller of the function that calls this one, by its description: 0.5 us.
    #[inline(never)]
    pub fn of_caller() -> Caller {
        // The walk's own frame, this function's, and that of the function that calls it.
        const OWN: usize = 3;
        let (mut frames, mut found) = (0, 0);
        unwind::walk(&mut |address| {
            (frames, found) = (frames + 1, address);
            frames <= OWN
        });
        Caller(found)
    }

    /// The address as a number.
    pub fn address(self) -> usize {
        self.0
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[inline(never)]
    extern "C" fn called() -> Caller {
        core::hint::black_box(Caller::of_caller())
    }

    #[test]
    fn the_caller_is_the_function_that_calls() {
        let address = called().address();
        let here = the_caller_is_the_function_that_calls as *const () as usize;
        assert!((here..here + 4096).contains(&address));
    }
}
