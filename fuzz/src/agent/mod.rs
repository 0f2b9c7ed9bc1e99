//! Modules of the agent that parse untrusted input, compiled from their place in memwatch. Only
//! parts of them are used.

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/agent/metrics"]
pub(crate) mod metrics {
    pub(crate) mod accept;
    mod exposition;
    mod families;
    mod samples;

    pub(crate) mod otlp {
        pub(crate) mod messages;
    }
}

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/agent/web"]
pub(crate) mod web {
    pub(crate) mod access;
}
