//! What users of BPFS may count on, beyond agreeing with the model: the bugs of the
//! original are absent, a full or failing medium costs nothing but the call, many
//! threads at once leave one consistent state, and the finer points of the calls.

mod emptied;
mod faults;
mod fixture;
mod killed;
mod known_bugs;
mod no_space;
mod semantics;
mod stress;
mod taller;
mod terabytes;
