//! SipHash-1-3: without the seed, no choice of keys collides more often than others. It is
//! here, and not the standard library's, because it must never change.

use crate::Persist;

/// The seed of a map's hashes.
#[derive(Debug, Clone, Copy, Persist)]
pub(crate) struct Seed {
    low: u64,
    high: u64,
}

impl Seed {
    pub(crate) fn new(seed: u128) -> Self {
        Self {
            low: seed as u64,
            high: (seed >> 64) as u64,
        }
    }

    /// The hash of `bytes`.
    pub(crate) fn hash(self, bytes: &[u8]) -> u64 {
        let mut state = State([
            self.low ^ 0x736f_6d65_7073_6575,
            self.high ^ 0x646f_7261_6e64_6f6d,
            self.low ^ 0x6c79_6765_6e65_7261,
            self.high ^ 0x7465_6462_7974_6573,
        ]);
        let (words, rest) = bytes.as_chunks();
        for word in words {
            state.absorb(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = bytes.len() as u8;
        state.absorb(u64::from_le_bytes(last));
        state.finish()
    }
}

struct State([u64; 4]);

impl State {
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*b);
        *a = a.wrapping_add(*d);
        *b = b.rotate_left(17) ^ *c;
        *d = d.rotate_left(21) ^ *a;
        *c = c.rotate_left(32);
    }

    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        (0..3).for_each(|_| self.round());
        let [a, b, c, d] = self.0;
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares hashes with those of the reference implementation.
    #[test]
    fn hashes_are_those_of_siphash() {
        let none = Seed::new(0);
        assert_eq!(none.hash(b""), 0xd1fb_a762_150c_532c);
        assert_eq!(none.hash(b"siphash"), 0x8264_ceec_cb16_bcbe);
        assert_eq!(none.hash(b"digest-sip_hash"), 0xce31_007e_3413_0c0a);
        let counting = Seed::new(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
        assert_eq!(counting.hash(b""), 0xabac_0158_050f_c4dc);
    }
}
