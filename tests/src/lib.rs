//! What the tests of whole processes, vectors and the tree share.

pub mod vectors;
