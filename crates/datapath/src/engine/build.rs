//! From the description of an engine to the engine: plans, opens and joins its ports, and makes its
//! workers.

use std::sync::Arc;

use linerate_port::thread::allowed_cpus;
use linerate_port::{Code, Error, Result};
use linerate_skb::Verdict;

use super::{Engine, EngineBuilder};
use crate::demand;
use crate::memory::Memory;
use crate::notice::Notice;
use crate::opening::{self, Group, Groups};
use crate::plan;
use crate::ports::{self, Named, ReadsInPlace};
use crate::stage::{Stage, StageContext, Xconnect};
use crate::stats::{Entry, Stats};
use crate::steer::{self, Steered};
use crate::worker::{StageAlarms, Worker};
use crate::worker_slot::WorkerSlot;
use crate::wrapping;

impl EngineBuilder {
    /// Opens the ports and builds the engine. No thread runs yet.
    ///
    /// # Errors
    /// A CPU that cannot be used (`E-CPU`), before anything is opened; a port that cannot be opened
    /// or wrapped, a wire that makes no sense (`E-TOPOLOGY`), a pool smaller than the sum of its
    /// holders (`E-POOL-TOO-SMALL`, with the sum).
    pub fn build(mut self) -> Result<Engine> {
        linerate_port::thread::try_cpus(&self.cpus)?;
        self.sizes.backlog = self.sizes.backlog.max(self.sizes.budget);
        let name = |(name, text): &(String, String)| Named::new(&self.drivers, name, text);
        let mut named = self.ports.iter().map(name).collect::<Result<Vec<_>>>()?;
        if named.is_empty() {
            let why = "it has no port";
            return Err(Error::new(Code::Topology, "cannot build the engine", why)
                .fix("name two by .port(NAME, TEXT), and join them by .wire(NAME, NAME)"));
        }
        let fans = steer::fans(&named, &self.steerings)?;
        let mut wires: Vec<_> = fans.iter().filter_map(|fan| fan.wires().next()).collect();
        wires.extend(plan::find_wires(&named, &self.wires)?);
        let looks = !(self.makers.is_empty() && self.wraps.is_empty() && fans.is_empty());
        let wraps = wrapping::find(&named, std::mem::take(&mut self.wraps))?;
        plan::check_wires(&named, &wires, &fans)?;
        let kept = plan::find_kept(&named, &self.kept, &wires, &fans)?;
        let beside = plan::find_beside(&named, &self.beside, (&wires, &fans, &kept))?;
        ports::direct(&mut named, &wires, &kept, looks);
        let mut ports = ports::plan(named, &wires)?;
        opening::check_bytes(&ports, &wires)?;
        // Before a port is opened: a file that a refused engine would write keeps its content.
        opening::check_directions(&ports, &wires, |port| ports[port].needs.direction)?;
        let reader = match (fans.is_empty(), self.reads_exported) {
            (false, _) => Some(ReadsInPlace::Steering),
            (true, false) => Some(ReadsInPlace::Stage),
            (true, true) => None,
        };
        if let Some(reader) = reader {
            self.memory.check_private(reader)?;
            ports::keep_private(&mut ports, reader)?;
        }
        let queues: Vec<usize> = ports.iter().map(|port| port.needs.queues.max(1)).collect();
        let most = self.workers.unwrap_or(wires.len().max(self.cpus.len()));
        let mut workers = plan::workers(&queues, (&wires, &fans), &beside, most);
        kept.iter().for_each(|port| workers[*port].clear());
        // If the program passes a pool, all ports use it.
        let pools = match self.memory.pool {
            Some(_) => vec![0; ports.len()],
            None => demand::pools(&ports, &wires, &fans),
        };
        let mut memory = self.memory.get(&demand::demands(&ports, &pools, &workers), self.sizes)?;
        let mut warnings = std::mem::take(&mut memory.warnings);
        let usable = allowed_cpus().map_or(usize::MAX, |cpus| cpus.len());
        warnings.extend(plan::misfits(memory.workers(), self.workers, &self.cpus, usable));
        let mut opened = opening::open_all(&ports, &memory.pools_of_ports())?;
        opening::check_directions(&ports, &wires, |port| opened[port].obtained.direction)?;
        opening::check_rates(&ports, &opened)?;
        let meters = wrapping::wrap_all(&ports, &mut opened, wraps)?;
        let kept = opening::keep(&kept, &ports, &mut opened, &memory, self.moderation);
        let groups = Groups {
            ports: &ports,
            wires: &wires,
            fans: &fans,
            workers: &workers,
            memory: &memory,
            meters,
        };
        let (entries, groups) = groups.split(opened, self.sizes, self.moderation, &mut warnings);
        let steered = steer::link(&ports, &groups, &fans, &self.steerings)?;
        let notice = Arc::default();
        let made = self.make_workers(groups, steered, &memory, &notice, &entries)?;
        let warnings = Arc::from(warnings);
        let workers = made.iter().map(|(_, slot)| slot.waits().clone()).collect();
        let pools = memory.pools.into();
        let stats = Stats { ports: Arc::new(entries), workers, pools, warnings };
        let (holders, cpus) = (memory.holders, self.cpus);
        Ok(Engine { workers: made, kept, notice, stats, holders, cpus })
    }

    fn make_workers(
        &mut self,
        groups: Vec<Group>,
        steered: Vec<Steered>,
        memory: &Memory,
        notice: &Arc<Notice>,
        entries: &[Entry],
    ) -> Result<Vec<(Worker, Arc<WorkerSlot>)>> {
        let mut made = Vec::new();
        for (i, (group, (steers, clearing))) in groups.into_iter().zip(steered).enumerate() {
            if group.napis.len() > Verdict::OUTPUTS_MAX {
                let why = format!("worker {i} would serve {} queues", group.napis.len());
                return Err(Error::new(Code::Topology, "cannot build the engine", why)
                    .fix(format!("at most {} a worker", Verdict::OUTPUTS_MAX)));
            }
            let stages = self.make_stages(i, &group.names, entries, steers)?;
            let queues = group.names.into_iter().zip(group.numbers).zip(&group.napis);
            let queues = queues.map(|((port, number), napi)| napi.as_queue_of(port, number));
            let slot = WorkerSlot::new(notice, queues.collect())?;
            let mems = memory.of_worker(i);
            let mut worker =
                Worker::new(group.napis, stages, mems, self.sizes.budget, slot.clone())?;
            (worker.clearing, worker.number) = (clearing, i);
            worker.stage_alarms = StageAlarms::of_first(self.makers.len());
            made.push((worker, slot));
        }
        Ok(made)
    }

    fn make_stages(
        &mut self,
        worker: usize,
        names: &[String],
        entries: &[Entry],
        steers: Vec<Box<dyn Stage>>,
    ) -> Result<Vec<Box<dyn Stage>>> {
        let mut cx = StageContext::new(names, worker, entries);
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        for (make, runs_at_division) in &mut self.makers {
            let stage = make(&mut cx);
            stages.push(match *runs_at_division {
                true => stage,
                false => steer::outside(&self.steerings, names, stage),
            });
        }
        if let Some(missing) = cx.missing().first() {
            let why = format!("a stage of worker {worker} asks for port '{missing}'");
            return Err(Error::new(Code::Topology, "cannot build the engine", why).fix(format!(
                "its ports: {}; to serve another one there: beside(\"{missing}\", …)",
                names.join(" ")
            )));
        }
        stages.extend(steers);
        stages.push(Box::new(Xconnect));
        Ok(stages)
    }
}
