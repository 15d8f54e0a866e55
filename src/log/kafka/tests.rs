//! Faults that a broker answers, put into a mocked cluster.
