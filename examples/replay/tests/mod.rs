//! Tests of the replay without a server, and against a stand-in for one.

mod client;
mod plan;
mod player;
mod recording;
mod stand_in;
mod text;
