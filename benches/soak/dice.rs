//! Choices that are the same in every run of the same worker.

/// A small generator of numbers (splitmix64): what is chosen need not be a secret, only varied.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: usize) -> Self {
        Self((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of 0 … `sides` - 1.
    pub fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % sides as u64).unwrap_or_default()
    }

    /// One of them; `None` when there is none.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.roll(all.len())) }
    }
}
