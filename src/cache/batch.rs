// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fixed-size list of regions, for loops that must release the lock between two portions.

use crate::layout::Regions;
use crate::region::link::Id;
use crate::region::slot::CachedRegion;

pub struct Batch {
    ids: [Id; Batch::MOST],
    count: usize,
}

impl Batch {
    const MOST: usize = 64;

    pub fn new() -> Batch {
        Batch {
            ids: [Id(0); Batch::MOST],
            count: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == Batch::MOST
    }

    pub(super) fn push(&mut self, id: Id) {
        self.ids[self.count] = id;
        self.count += 1;
    }

    /// Removes the regions for which `stays` is false.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(Id) -> bool) {
        let mut kept = Batch::new();
        for &id in self.ids() {
            if stays(id) {
                kept.push(id);
            }
        }
        *self = kept;
    }

    pub fn ids(&self) -> &[Id] {
        &self.ids[..self.count]
    }
}

impl Regions {
    /// Returns the next batch of slots that `which` selects, starting at the slot `from`, and sets
    /// `from` to the slot after them. `None` if there are no more. This takes no lock, so the
    /// caller checks each slot again under the lock.
    pub fn next_batch(
        &self,
        from: &mut Id,
        mut which: impl FnMut(&CachedRegion) -> bool,
    ) -> Option<Batch> {
        let mut batch = Batch::new();
        for (id, region) in self.each_from(*from) {
            if which(region) {
                batch.push(id);
            }
            *from = Id(id.0 + 1);
            if batch.is_full() {
                break;
            }
        }
        (batch.count > 0).then_some(batch)
    }
}
