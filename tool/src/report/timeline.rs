// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happened over time, in few enough points to draw: pinned bytes with their exact peak, the rate
//! and the latency of calls, and for each process the time that its calls took.
use super::shape::{Activity, Lane, Moment, Pinned, Point};
use crate::trace::Process;
use rdmamr_trace_format::Call;
use std::collections::BTreeMap;

/// Enough for a plot that is 25 times as wide as its window.
pub const POINTS: u64 = 3200;
/// How many points a step of a lane has: a page holds many lanes.
const LANE_STEP: u64 = 4;
/// The most processes that have a lane, so that the memory for them has a bound.
const MOST_LANES: usize = 1024;

/// Adds or subtracts, and saturates: a trace that the library did not write may contain any numbers.
pub type Change = fn(u64, u64) -> u64;

#[derive(Default)]
pub struct Timeline {
    /// The length of a point in time.
    step: u64,
    /// The memory that is pinned now.
    now: Point,
    peak: Point,
    points: Vec<Point>,
    /// By their step. [`Moment::mean_ns`] is a sum until [`Timeline::finish`] divides it.
    moments: BTreeMap<u64, Moment>,
    lanes: Vec<Lane>,
}

impl Timeline {
    /// `begin` is when the trace begins, and `span` how long it is.
    pub fn new(processes: &[Process], begin: u64, span: u64) -> Timeline {
        let step = span / POINTS + 1;
        let lane = |process: &Process| Lane {
            rank: process.rank,
            host: process.host.clone(),
            pid: process.pid,
            begin_ns: process.begin - begin,
            end_ns: process.end - begin,
            step_ns: step * LANE_STEP,
            busy_ns: Vec::new(),
        };
        Timeline {
            step,
            points: vec![Point::default()],
            lanes: processes.iter().take(MOST_LANES).map(lane).collect(),
            ..Timeline::default()
        }
    }

    /// Counts a call at the time since the trace's beginning at which it takes effect.
    pub fn call(&mut self, process: u32, since: u64, call: &Call) {
        let at = (since / self.step).min(POINTS - 1);
        let moment = self.moments.entry(at).or_default();
        moment.time_ns = at * self.step;
        moment.calls += 1;
        moment.mean_ns += u64::from(call.duration);
        moment.longest_ns = moment.longest_ns.max(call.duration.into());
        if let Some(Lane { busy_ns, .. }) = self.lanes.get_mut(process as usize) {
            busy_ns.resize((POINTS / LANE_STEP) as usize, 0);
            busy_ns[(at / LANE_STEP) as usize] += u64::from(call.duration);
        }
    }

    /// Advances time to `since`.
    fn advance(&mut self, since: u64) {
        let at = (since / self.step) as usize;
        while self.points.len() <= at {
            let time_ns = self.points.len() as u64 * self.step;
            self.points.push(self.now.at(time_ns));
        }
    }

    /// Pins or unpins bytes.
    pub fn adjust(&mut self, since: u64, bytes: u64, cache: bool, change: Change) {
        self.advance(since);
        let pinned = match cache {
            true => &mut self.now.cache_bytes,
            false => &mut self.now.plain_bytes,
        };
        *pinned = change(*pinned, bytes);
        if self.now.bytes() > self.peak.bytes() {
            self.peak = self.now.at(since);
        }
        let point = self.points.last_mut().expect("there is a first point");
        if self.now.bytes() > point.bytes() {
            *point = self.now.at(point.time_ns);
        }
    }

    pub fn finish(mut self, span: u64) -> (Pinned, Activity, Vec<Lane>) {
        self.advance(span);
        let pinned = Pinned {
            peak_bytes: self.peak.bytes(),
            peak_plain_bytes: self.peak.plain_bytes,
            peak_cache_bytes: self.peak.cache_bytes,
            peak_at_ns: self.peak.time_ns,
            end_bytes: self.now.bytes(),
            points: self.points,
        };
        for moment in self.moments.values_mut() {
            moment.mean_ns /= moment.calls;
        }
        let activity = Activity {
            step_ns: self.step,
            moments: self.moments.into_values().collect(),
        };
        self.lanes.retain(|lane| !lane.busy_ns.is_empty());
        self.lanes
            .sort_by_key(|lane| (lane.rank.is_none(), lane.rank, lane.begin_ns, lane.pid));
        (pinned, activity, self.lanes)
    }
}
