// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned bytes over time, in few enough points to draw, and the exact peak.
use super::shape::{Pinned, Point};

/// Enough for a plot that is 25 times as wide as its window.
pub const POINTS: u64 = 3200;

pub struct Timeline {
    /// The length of a point in time.
    step: u64,
    /// The memory that is pinned now.
    now: Point,
    peak: Point,
    points: Vec<Point>,
}

impl Timeline {
    pub fn new(span: u64) -> Timeline {
        let start = Point::default();
        Timeline {
            step: span / POINTS + 1,
            now: start,
            peak: start,
            points: vec![start],
        }
    }

    /// Advances time to `since`.
    fn advance(&mut self, since: u64) {
        let at = (since / self.step) as usize;
        while self.points.len() <= at {
            let time_ns = self.points.len() as u64 * self.step;
            self.points.push(Point {
                time_ns,
                ..self.now
            });
        }
    }

    fn bytes(&mut self, cache: bool) -> &mut u64 {
        if cache {
            &mut self.now.cache_bytes
        } else {
            &mut self.now.plain_bytes
        }
    }

    pub fn pin(&mut self, since: u64, bytes: u64, cache: bool) {
        self.advance(since);
        // A trace that the library did not write may contain any numbers.
        let pinned = self.bytes(cache);
        *pinned = pinned.saturating_add(bytes);
        if self.now.bytes() > self.peak.bytes() {
            self.peak = Point {
                time_ns: since,
                ..self.now
            };
        }
        let point = self.points.last_mut().expect("there is a first point");
        if self.now.bytes() > point.bytes() {
            *point = Point {
                time_ns: point.time_ns,
                ..self.now
            };
        }
    }

    pub fn unpin(&mut self, since: u64, bytes: u64, cache: bool) {
        self.advance(since);
        let pinned = self.bytes(cache);
        *pinned = pinned.saturating_sub(bytes);
    }

    pub fn finish(mut self, span: u64) -> Pinned {
        self.advance(span);
        Pinned {
            peak_bytes: self.peak.bytes(),
            peak_plain_bytes: self.peak.plain_bytes,
            peak_cache_bytes: self.peak.cache_bytes,
            peak_at_ns: self.peak.time_ns,
            end_bytes: self.now.bytes(),
            points: self.points,
        }
    }
}
