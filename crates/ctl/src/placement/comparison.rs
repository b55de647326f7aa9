//! The final comparison of a search: the original places and the candidates in turn.

use linerate_port::{Code, Result};

use super::Places;
use super::search::{Floor, Gauge, Reading, median};

/// Number of readings of each candidate and of the original places, in turn. Two of nine that are
/// disturbed are in no quartile.
const FINAL_TIMES: usize = 9;

/// Places with their readings of the final comparison; the original ones are the first.
pub(super) type Row = (Places, Vec<Reading>);

/// Reads the original places and the others in turn, every second round backwards, so that a change
/// of load affects all of them. Places that are refused now are left out. Reads nothing if there
/// are no others.
pub(super) fn in_turn(
    start: &Places,
    others: Vec<Places>,
    gauge: &mut dyn Gauge,
) -> Result<Vec<Row>> {
    let all = [start.clone()].into_iter().chain(others);
    let mut rows: Vec<Row> = all.map(|places| (places, Vec::new())).collect();
    for round in 0..FINAL_TIMES {
        if rows.len() < 2 {
            break;
        }
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut refused: Vec<Places> = Vec::new();
        for i in order {
            match gauge.place(&rows[i].0) {
                Ok(()) => rows[i].1.extend(gauge.read()?),
                // A worker that does not obey now obeys no further order.
                Err(e) if i == 0 || e.code == Code::Busy => return Err(e),
                Err(_) => refused.push(rows[i].0.clone()),
            }
        }
        rows.retain(|(places, _)| !refused.contains(places));
    }
    Ok(rows)
}

/// The result of the final comparison.
pub(super) struct Final {
    pub places: Places,
    pub before: Reading,
    pub after: Reading,
    pub floor: Floor,
}

/// Chooses, of the places that are better than the original ones, the cheapest to which no other is
/// better; returns the original ones if there are none, and `None` if they have too few readings.
pub(super) fn judge_all(rows: &[Row]) -> Option<Final> {
    let read = |(places, all): &Row| {
        let middle = median(all).filter(|_| all.len() > FINAL_TIMES / 2)?;
        Some((places.clone(), middle, Floor::of(all, &middle)))
    };
    let (start, before, floor) = read(rows.first()?)?;
    let mut better: Vec<(Places, Reading, Floor)> = rows[1..].iter().filter_map(read).collect();
    // Readings of other places may vary more.
    better.retain(|(_, reading, own)| reading.is_better(&before, &floor.or(own)));
    better.sort_by(|(_, a, _), (_, b, _)| a.cost.total_cmp(&b.cost));
    let is_worse = |(_, one, own): &&(Places, Reading, Floor)| {
        better.iter().any(|(_, other, its)| other.is_better(one, &own.or(its)))
    };
    let best = better.iter().find(|one| !is_worse(one)).or(better.first());
    let (places, after) = best.map_or((start, before), |(places, it, _)| (places.clone(), *it));
    Some(Final { places, before, after, floor })
}
