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

    fn keeps(&mut self, bytes: u64) {
        self.now.cached_bytes = self.now.bytes().saturating_add(bytes);
    }

    fn bytes(&mut self, cache: bool) -> &mut u64 {
        if cache {
            &mut self.now.cache_bytes
        } else {
            &mut self.now.plain_bytes
        }
    }

    /// `kept`: the bytes of idle regions under `--cache=all`, after this change.
    pub fn pin(&mut self, since: u64, bytes: u64, cache: bool, kept: u64) {
        self.advance(since);
        // A trace that the library did not write may contain any numbers.
        let pinned = self.bytes(cache);
        *pinned = pinned.saturating_add(bytes);
        self.keeps(kept);
        if self.now.bytes() > self.peak.bytes() {
            self.peak = Point {
                time_ns: since,
                ..self.now
            };
        }
        let point = self.points.last_mut().expect("there is a first point");
        let cached_bytes = self.now.cached_bytes.max(point.cached_bytes);
        if self.now.bytes() > point.bytes() {
            *point = Point {
                time_ns: point.time_ns,
                ..self.now
            };
        }
        point.cached_bytes = cached_bytes;
    }

    pub fn unpin(&mut self, since: u64, bytes: u64, cache: bool, kept: u64) {
        self.advance(since);
        let pinned = self.bytes(cache);
        *pinned = pinned.saturating_sub(bytes);
        self.keeps(kept);
    }

    pub fn finish(mut self, span: u64) -> Pinned {
        self.advance(span);
        Pinned {
            peak_bytes: self.peak.bytes(),
            peak_plain_bytes: self.peak.plain_bytes,
            peak_cache_bytes: self.peak.cache_bytes,
            peak_at_ns: self.peak.time_ns,
            end_bytes: self.now.bytes(),
            cached_peak_bytes: self
                .points
                .iter()
                .map(|point| point.cached_bytes)
                .max()
                .unwrap_or(0),
            points: self.points,
        }
    }
}
