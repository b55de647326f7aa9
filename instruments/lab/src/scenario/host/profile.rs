//! One profile of several workers.

use linerate_prof::profile::{Profile, Row};

use super::config::{Config, Workload};

/// The workers' profiles added up, over `packets` packets; `None` of none.
pub(super) fn together(profiles: Vec<Profile>, packets: u64, config: &Config) -> Option<Profile> {
    let mut profiles = profiles.into_iter();
    let mut all = profiles.next()?;
    for one in profiles {
        for row in one.rows {
            let same = |known: &&mut Row| {
                known.symbol == row.symbol && known.object == row.object && known.space == row.space
            };
            match all.rows.iter_mut().find(same) {
                Some(known) => known.count += row.count,
                None => all.rows.push(row),
            }
        }
        if let (Some(total), Some(more)) = (&mut all.total, one.total) {
            total.count += more.count;
        }
        all.lost += one.lost;
        let (cpu, more) = (all.conditions.cpu_ns, one.conditions.cpu_ns);
        all.conditions.cpu_ns = cpu.zip(more).map(|(cpu, more)| cpu + more);
        let news = one.remarks.into_iter().filter(|remark| !all.remarks.contains(remark));
        let news: Vec<String> = news.collect();
        all.remarks.extend(news);
    }
    all.rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.symbol.cmp(&b.symbol)));
    all.conditions.packets = Some(packets);
    let workload = match config.workload {
        Workload::Stream => "bulk TCP through packet ports",
        Workload::Web => "short responses over TCP through packet ports",
    };
    all.conditions.workload = Some(format!("{workload}: the workers' threads"));
    Some(all)
}
