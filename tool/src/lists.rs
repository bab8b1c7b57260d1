// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short lists whose elements are found by looking at each.

/// The first element that is the one, or else a new one at the end.
pub fn entry<T>(list: &mut Vec<T>, is_it: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = list.iter().position(is_it).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    });
    &mut list[at]
}
