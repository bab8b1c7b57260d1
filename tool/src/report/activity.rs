// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the processes did over time: the rate and the latency of calls, and for each process the
//! time that its calls took, in few enough steps to draw.
use super::shape::{Activity, Lane, Moment};
use super::timeline::POINTS;
use crate::trace::Process;
use rdmamr_trace_format::Call;

/// How many points of the timeline a step of a lane has: a page holds many lanes.
const LANE_STEP: u64 = 4;
/// The most processes that have a lane, so that the memory for them has a bound.
const MOST_LANES: usize = 1024;

pub struct Counts {
    begin: u64,
    step: u64,
    /// [`Moment::mean_ns`] is a sum until [`Counts::finish`] divides it.
    steps: Vec<Moment>,
    lanes: Vec<Vec<u64>>,
}

impl Counts {
    pub fn new(begin: u64, span: u64, processes: usize) -> Counts {
        Counts {
            begin,
            step: span / POINTS + 1,
            steps: vec![Moment::default(); POINTS as usize],
            lanes: vec![Vec::new(); processes.min(MOST_LANES)],
        }
    }

    /// `effect` is the time since the trace's beginning at which the call counts.
    pub fn add(&mut self, process: u32, effect: u64, call: &Call) {
        let at = ((effect / self.step) as usize).min(self.steps.len() - 1);
        let step = &mut self.steps[at];
        step.calls += 1;
        step.mean_ns += u64::from(call.duration);
        step.longest_ns = step.longest_ns.max(call.duration.into());
        if let Some(lane) = self.lanes.get_mut(process as usize) {
            if lane.is_empty() {
                *lane = vec![0; (POINTS / LANE_STEP) as usize];
            }
            lane[at / LANE_STEP as usize] += u64::from(call.duration);
        }
    }

    pub fn finish(self, processes: &[Process]) -> (Activity, Vec<Lane>) {
        let (begin, step_ns) = (self.begin, self.step);
        let moment = |(n, step): (usize, Moment)| Moment {
            time_ns: n as u64 * step_ns,
            mean_ns: step.mean_ns / step.calls,
            ..step
        };
        let steps = self.steps.into_iter().enumerate();
        let moments = steps.filter(|(_, step)| step.calls > 0).map(moment);
        let activity = Activity {
            step_ns,
            moments: moments.collect(),
        };
        let lanes = processes
            .iter()
            .zip(self.lanes)
            .map(|(process, busy_ns)| Lane {
                rank: process.rank,
                host: process.host.clone(),
                pid: process.pid,
                begin_ns: process.begin - begin,
                end_ns: process.end - begin,
                step_ns: step_ns * LANE_STEP,
                busy_ns,
            });
        let mut lanes: Vec<_> = lanes.filter(|lane| !lane.busy_ns.is_empty()).collect();
        lanes.sort_by_key(|lane| (lane.rank.is_none(), lane.rank, lane.begin_ns, lane.pid));
        (activity, lanes)
    }
}
