// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's regions by address: the tree finds those that overlap a range. All of it runs under
//! the cache's lock.
//!
//! The tree is a treap: a region that starts later is further right, of two that start at one page
//! the older one, and a region's parent has the greater priority, a hash of its slot's number. So the
//! tree is as deep as a random one, in whatever order regions come and go: 24 on average for 100 000
//! regions. Each region knows the greatest end of those below it. The links lie
//! in the slots, and lead up too: the tree allocates nothing, and no function needs a stack.

use crate::region::slot::{AtomicLink, Id, Link, Slot};
use core::sync::atomic::Ordering::*;
use rdmamr_sys::pages::PageRange;

/// The root of the tree. Zeroed memory is an empty tree.
pub struct Tree(AtomicLink);

fn priority(id: Id) -> u32 {
    let mixed = (id.0 ^ id.0 >> 16).wrapping_mul(0x85eb_ca6b);
    (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35)
}

fn at<'a>(regions: &'a [Slot], link: &AtomicLink) -> Option<(Id, &'a Slot)> {
    let id = link.load().id()?;
    Some((id, &regions[id.0 as usize]))
}

/// Recomputes the greatest end of a region and those below it. Returns whether it has changed.
fn update(regions: &[Slot], region: &Slot) -> bool {
    let of_child = |link| at(regions, link).map(|(_, it)| it.greatest_end.load(Relaxed));
    let ends = region.children.iter().filter_map(of_child);
    let greatest_end = ends.fold(region.page_range().end, u64::max);
    let before = region.greatest_end.load(Relaxed);
    region.greatest_end.store(greatest_end, Relaxed);
    greatest_end != before
}

impl Tree {
    pub fn add(&self, regions: &[Slot], new: Id) {
        let region = &regions[new.0 as usize];
        let PageRange { start, end } = region.page_range();
        let (mut place, mut parent) = (&self.0, Link::NONE);
        while let Some((id, here)) = at(regions, place) {
            if here.greatest_end.load(Relaxed) < end {
                here.greatest_end.store(end, Relaxed);
            }
            let is_after = start > here.page_range().start;
            place = &here.children[usize::from(is_after)];
            parent = Link::to(id);
        }
        place.store(Link::to(new));
        region.parent.store(parent);
        region
            .children
            .iter()
            .for_each(|child| child.store(Link::NONE));
        region.greatest_end.store(end, Relaxed);
        let is_misplaced = |(parent, _): (Id, _)| priority(parent) < priority(new);
        while at(regions, &region.parent).is_some_and(is_misplaced) {
            self.raise(regions, new);
        }
    }

    pub fn remove(&self, regions: &[Slot], old: Id) {
        let node = &regions[old.0 as usize];
        let children = || node.children.iter().filter_map(|child| child.load().id());
        while let Some(child) = children().max_by_key(|&child| priority(child)) {
            self.raise(regions, child);
        }
        self.place_of(regions, old).store(Link::NONE);
        let mut above = at(regions, &node.parent);
        while let Some((_, region)) = above.filter(|(_, region)| update(regions, region)) {
            above = at(regions, &region.parent);
        }
    }

    /// The link that leads to a region.
    fn place_of<'a>(&'a self, regions: &'a [Slot], id: Id) -> &'a AtomicLink {
        match at(regions, &regions[id.0 as usize].parent) {
            Some((_, parent)) => &parent.children[usize::from(is_right(parent, id))],
            None => &self.0,
        }
    }

    /// Puts a region in the place of its parent, which becomes its child.
    fn raise(&self, regions: &[Slot], id: Id) {
        let node = &regions[id.0 as usize];
        let Some((parent_id, parent)) = at(regions, &node.parent) else {
            return;
        };
        let side = usize::from(is_right(parent, id));
        self.place_of(regions, parent_id).store(Link::to(id));
        let between = &node.children[1 - side];
        if let Some((_, between)) = at(regions, between) {
            between.parent.store(Link::to(parent_id));
        }
        parent.children[side].store(between.load());
        between.store(Link::to(parent_id));
        node.parent.store(parent.parent.load());
        parent.parent.store(Link::to(id));
        let greatest_end = parent.greatest_end.load(Relaxed);
        node.greatest_end.store(greatest_end, Relaxed);
        update(regions, parent);
    }

    /// Calls `each` for the regions that overlap a range, from the one that starts first on, until
    /// `each` returns false. `each` must not change the tree. It is `dyn`, so that this code exists
    /// once, and not once for each caller.
    pub fn overlapping(
        &self,
        regions: &[Slot],
        range: PageRange,
        each: &mut dyn FnMut(Id, &Slot) -> bool,
    ) {
        // The root of a subtree that reaches into the range or beyond it.
        let subtree =
            |link| at(regions, link).filter(|(_, it)| it.greatest_end.load(Relaxed) > range.start);
        let Some(mut here) = subtree(&self.0).filter(|_| range.start < range.end) else {
            return;
        };
        loop {
            while let Some(left) = subtree(&here.1.children[0]) {
                here = left;
            }
            loop {
                let (id, region) = here;
                let page_range = region.page_range();
                if page_range.start >= range.end || page_range.overlaps(range) && !each(id, region)
                {
                    return;
                }
                if let Some(right) = subtree(&region.children[1]) {
                    here = right;
                    break;
                }
                // Goes up to the first region that has this one on its left.
                loop {
                    let Some(parent) = at(regions, &here.1.parent) else {
                        return;
                    };
                    let was_right = is_right(parent.1, here.0);
                    here = parent;
                    if !was_right {
                        break;
                    }
                }
            }
        }
    }
}

/// Whether a child of `parent` is its right one.
fn is_right(parent: &Slot, child: Id) -> bool {
    parent.children[1].load() == Link::to(child)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::region::slot::Domain;
    use proptest::prelude::*;

    const SLOTS: usize = 200;

    fn region() -> Slot {
        // SAFETY: all zeros is a slot that was never used.
        unsafe { core::mem::zeroed() }
    }

    /// Checks the order of a subtree, its priorities, its links and its ends. Returns its depth.
    fn check(regions: &[Slot], link: &AtomicLink, parent: Option<Id>) -> usize {
        let Some((id, region)) = at(regions, link) else {
            return 0;
        };
        assert_eq!(region.parent.load().id(), parent);
        assert!(parent.is_none_or(|parent| priority(parent) >= priority(id)));
        let depths = [0, 1].map(|side| check(regions, &region.children[side], Some(id)));
        assert!(!update(regions, region));
        1 + depths[0].max(depths[1])
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each step adds a slot's region with this range, or removes the slot's region.
        #[test]
        fn the_tree_is_the_naive_set(
            steps in prop::collection::vec((0..SLOTS as u32, 1..60u64, 1..20u64), 1..400),
        ) {
            let regions: Vec<Slot> = (0..SLOTS).map(|_| region()).collect();
            // The newest first.
            let (tree, mut known) = (Tree(region().parent), Vec::<Id>::new());
            for (slot, first, count) in steps {
                let (id, page) = (Id(slot), 4096);
                if let Some(at) = known.iter().position(|&other| other == id) {
                    known.remove(at);
                    tree.remove(&regions, id);
                } else {
                    let range = PageRange::new(first * page, (first + count) * page);
                    regions[slot as usize].set(range, Domain::NONE, 0);
                    tree.add(&regions, id);
                    known.insert(0, id);
                }
                check(&regions, &tree.0, None);
                let asked = PageRange::new(first * page, (first + count / 4) * page);
                let range_of = |id: Id| regions[id.0 as usize].page_range();
                let mut expected: Vec<(u64, Id)> = known
                    .iter()
                    .filter(|&&id| asked.start < asked.end && range_of(id).overlaps(asked))
                    .map(|&id| (range_of(id).start, id))
                    .collect();
                expected.sort_by_key(|&(start, _)| start);
                for most in [1, usize::MAX] {
                    let mut found = Vec::new();
                    tree.overlapping(&regions, asked, &mut |id, region| {
                        found.push((region.page_range().start, id));
                        found.len() < most
                    });
                    let end = expected.len().min(most);
                    prop_assert_eq!(&found, &expected[..end]);
                }
            }
        }
    }

    #[test]
    fn the_tree_of_regions_in_a_row_is_not_deep() {
        let regions: Vec<Slot> = (0..20_000).map(|_| region()).collect();
        let tree = Tree(region().parent);
        for (number, region) in regions.iter().enumerate() {
            let start = (number as u64 + 1) * 4096;
            region.set(PageRange::new(start, start + 4096), Domain::NONE, 0);
            tree.add(&regions, Id(number as u32));
        }
        let depth = check(&regions, &tree.0, None);
        assert!(depth < 60, "{depth}");
    }
}
