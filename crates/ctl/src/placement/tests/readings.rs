//! Tests which readings a search trusts, with readings that are given by number.

use linerate_port::{Code, Error, Result};

use super::super::*;
use super::Machine;

/// Refuses some places, by the number of the call.
type Refusal = fn(&[Option<usize>], usize) -> Option<Code>;

/// A gauge that tells the readings of `read`: of the original places or of others, and by their
/// number there.
struct Script<F> {
    read: F,
    now: Places,
    reads: [usize; 2],
    placed: usize,
    refuse: Refusal,
}

impl<F: FnMut(bool, usize) -> Option<f64>> Gauge for Script<F> {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        self.placed += 1;
        if let Some(code) = (self.refuse)(places, self.placed) {
            return Err(Error::new(code, "cannot place", "refused"));
        }
        self.now = places.to_vec();
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        let is_original = self.now[0].is_none();
        let number = &mut self.reads[usize::from(!is_original)];
        *number += 1;
        Ok((self.read)(is_original, *number).map(|cost| Reading::new(cost, 1e6, 0.0, 0.0)))
    }
}

/// Searches places for one thing on a machine with one CPU.
fn search(refuse: Refusal, read: impl FnMut(bool, usize) -> Option<f64>) -> Result<Option<Found>> {
    let machine = Machine::new(1, 1, 1, 0);
    let mut gauge = Script { read, now: vec![None], reads: [0; 2], placed: 0, refuse };
    Search::new(&machine.topology(), 1).run(&mut gauge)
}

#[test]
fn places_with_a_single_good_reading_are_not_kept() {
    let read = |is_original: bool, n| Some(if !is_original && n == 1 { 10.0 } else { 100.0 });
    let found = search(|_, _| None, read).unwrap().unwrap();
    assert!(found.tried.iter().all(|tried| !tried.kept), "{:?}", found.tried);
    assert_eq!(found.places, [None]);
}

#[test]
fn places_with_few_final_readings_are_not_chosen() {
    let read = |is_original: bool, n: usize| match is_original {
        true => Some(100.0),
        false => Some(50.0).filter(|_| n <= 4),
    };
    assert_eq!(search(|_, _| None, read).unwrap().unwrap().places, [None]);
}

#[test]
fn places_whose_readings_differ_by_more_than_they_gain_are_not_chosen() {
    let costs = [50.0, 50.0, 50.0, 90.0, 90.0, 130.0, 130.0, 130.0, 130.0];
    let read = |is_original: bool, n: usize| match (is_original, n) {
        (true, _) => Some(100.0),
        (false, 1 | 2) => Some(90.0),
        (false, n) => Some(costs[(n - 3) % 9]),
    };
    assert_eq!(search(|_, _| None, read).unwrap().unwrap().places, [None]);
}

#[test]
fn two_of_six_readings_of_the_original_places_are_too_few_to_compare_with() {
    let read = |is_original: bool, n| Some(100.0).filter(|_| !is_original || n <= 2);
    assert_eq!(search(|_, _| None, read).unwrap(), None);
}

#[test]
fn worker_that_does_not_obey_ends_the_search() {
    let busy = |places: &[Option<usize>], _| places[0].map(|_| Code::Busy);
    let e = search(busy, |_, _| Some(100.0)).unwrap_err();
    assert_eq!(e.code, Code::Busy);
}

#[test]
fn original_places_that_are_refused_end_the_search() {
    // The first calls set places that are tried; later ones set the original places for the
    // comparison.
    let refuse = |places: &[Option<usize>], n| (places[0].is_none() && n < 4).then_some(Code::Cpu);
    let read = |is_original: bool, _: usize| Some(if is_original { 100.0 } else { 50.0 });
    assert_eq!(search(refuse, read).unwrap_err().code, Code::Cpu);
}

/// Notes the order in which places are set.
#[derive(Default)]
struct Noted(Vec<Places>);

impl Gauge for Noted {
    fn place(&mut self, places: &[Option<usize>]) -> Result<()> {
        self.0.push(places.to_vec());
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Reading>> {
        Ok(None)
    }
}

#[test]
fn every_second_round_of_the_comparison_is_backwards() {
    let (start, other) = (vec![None], vec![Some(0)]);
    let mut noted = Noted::default();
    super::super::comparison::in_turn(&start, vec![other.clone()], &mut noted).unwrap();
    let round = [start.clone(), other.clone(), other, start];
    assert_eq!(noted.0[..8], [round.clone(), round].concat());
    assert_eq!(noted.0.len(), 18);
}
