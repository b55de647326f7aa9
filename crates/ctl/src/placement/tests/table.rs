//! Tests of what a search keeps, on a table of costs: places that no neighbour leads to, disturbed
//! readings, and places that are refused at the end.

use super::*;

/// Things on two CPUs at a cost by their places. All begin on CPU 0.
struct Table {
    cost: fn(&[usize]) -> f64,
    now: Places,
    /// The number of readings so far; the next field tells which of them are disturbed.
    read: usize,
    disturbs: Box<dyn Fn(usize) -> bool>,
    /// Places that are refused after so many readings.
    refused: Option<(usize, Places)>,
}

impl Table {
    fn new(things: usize, cost: fn(&[usize]) -> f64) -> Table {
        let disturbs = Box::new(|_| false);
        Table { cost, now: vec![None; things], read: 0, disturbs, refused: None }
    }

    fn at(&self, places: &[Option<usize>]) -> f64 {
        (self.cost)(&places.iter().map(|cpu| cpu.unwrap_or(0)).collect::<Vec<_>>())
    }
}

impl Gauge for Table {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        if self.refused.as_ref().is_some_and(|(from, it)| self.read >= *from && it == places) {
            return Err(Error::new(Code::Cpu, "a thing", "not there"));
        }
        self.now = places.to_vec();
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        self.read += 1;
        let slower = if (self.disturbs)(self.read) { 3.0 } else { 1.0 };
        Ok(Some(Reading::new(self.at(&self.now) * slower, 1e6 / slower, 0.0, 0.0)))
    }
}

#[test]
fn of_few_places_all_are_tried_because_no_neighbour_of_the_start_may_be_better() {
    let machine = Machine::new(1, 2, 1, 0);
    let topology = machine.topology();
    let cost = |at: &[usize]| if at == [1, 1, 1, 0] { 50.0 } else { 100.0 };
    let search = |most| Search::new(&topology, 4).tries_max(most);
    let found = search(16).run(&mut Table::new(4, cost)).unwrap().unwrap();
    assert_eq!(found.tried.len(), 16);
    assert_eq!(found.places, [Some(1), Some(1), Some(1), Some(0)]);
    // More places than may be tried: only proposals and their neighbours are.
    let found = search(15).run(&mut Table::new(4, cost)).unwrap().unwrap();
    assert_eq!((found.tried.len(), found.places), (15, vec![None; 4]));
}

#[test]
fn reading_that_was_disturbed_hides_no_better_places() {
    let machine = Machine::new(1, 2, 1, 0);
    let topology = machine.topology();
    for offset in 0..6 {
        let mut table = Table::new(2, |at| if at == [1, 0] { 90.0 } else { 100.0 });
        table.disturbs = Box::new(move |read| (read + offset) % 6 == 0);
        let found = Search::new(&topology, 2).run(&mut table).unwrap().unwrap();
        assert_eq!(found.places, [Some(1), Some(0)], "{offset}: {found:?}");
        assert_eq!((found.before.cost, found.after.cost), (100.0, 90.0));
    }
}

#[test]
fn places_that_are_refused_at_the_end_are_left_out() {
    let machine = Machine::new(1, 2, 1, 0);
    let topology = machine.topology();
    let mut table = Table::new(2, |at| match at {
        [1, 0] => 70.0,
        [0, 1] => 80.0,
        _ => 100.0,
    });
    table.refused = Some((15, vec![Some(1), Some(0)]));
    let found = Search::new(&topology, 2).run(&mut table).unwrap().unwrap();
    assert!(found.tried.iter().any(|tried| tried.places == [Some(1), Some(0)] && tried.kept));
    assert_eq!((&found.places, &table.now), (&vec![Some(0), Some(1)], &found.places));
}
