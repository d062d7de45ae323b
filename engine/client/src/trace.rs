//! The steps of a lookup, for users who want to see how it went.

use crate::exchange::AttemptError;
use crate::plan::ServerTarget;
use crate::service::SharedSite;
use handle_proto::{Handle, ResponseCode};
use std::fmt;
use std::net::IpAddr;

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupEvent {
    /// Milliseconds since the lookup began.
    pub at_ms: u64,
    /// Number of questions that depend on this one: 0 for the user's question.
    pub depth: usize,
    /// The step.
    pub step: LookupStep,
}

/// A kind of step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupStep {
    /// A handle is to be resolved.
    Question {
        /// The handle.
        handle: Vec<u8>,
        /// The reason.
        reason: QuestionReason,
    },
    /// The answer was in the cache.
    Cached {
        /// Its response code.
        code: ResponseCode,
    },
    /// The sites to ask are known.
    Sites {
        /// Where they come from.
        from: AnswerOrigin,
        /// The sites.
        sites: Vec<SharedSite>,
    },
    /// A request was sent to a server.
    Asked {
        /// The server.
        target: ServerTarget,
        /// The number of the attempt, from 1.
        try_number: usize,
    },
    /// A server answered.
    Answered {
        /// The server.
        target: ServerTarget,
        /// The response code.
        code: ResponseCode,
        /// The types of the values in the answer.
        kinds: Vec<Vec<u8>>,
        /// Response time in milliseconds.
        took_ms: u32,
        /// Whether its signature was verified.
        certified: bool,
    },
    /// A server did not answer, or its answer failed a check.
    Failed {
        /// The server.
        target: ServerTarget,
        /// The failure.
        error: AttemptError,
        /// Time until the failure, in milliseconds.
        took_ms: u32,
    },
    /// The name of a server was looked up.
    Named {
        /// The name.
        name: String,
        /// Its addresses; empty if it has none.
        addresses: Vec<IpAddr>,
    },
    /// A challenge was answered.
    Proved,
    /// A session was requested, so that later requests need no challenge.
    Session {
        /// Whether the server agreed. If not, each request is challenged.
        is_agreed: bool,
    },
    /// The handle is an alias.
    Alias {
        /// The handle that it stands for.
        handle: Vec<u8>,
    },
}

/// Why a handle is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionReason {
    /// It is the user's question.
    Asked,
    /// To find the service of its prefix.
    Prefix,
    /// A prefix record names it as the service.
    Service,
    /// A referral names it.
    Referral,
}

/// Where sites come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOrigin {
    /// The bootstrap file.
    Root,
    /// They are configured.
    Override,
    /// The caller.
    Caller,
    /// The record of the prefix, and what it names.
    Prefix,
    /// A referral.
    Referral,
}

impl fmt::Display for QuestionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "the question",
            Self::Prefix => "to find the service of the prefix",
            Self::Service => "the service that the record names",
            Self::Referral => "the referral names it",
        })
    }
}

impl fmt::Display for AnswerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "the global service",
            Self::Override => "sites that are configured for the prefix",
            Self::Caller => "the sites that were given",
            Self::Prefix => "the service of the prefix",
            Self::Referral => "the service of the referral",
        })
    }
}

impl fmt::Display for LookupEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:indent$}", "", indent = self.depth * 2)?;
        match &self.step {
            LookupStep::Question { handle, reason: why } => write!(f, "{}  ({why})", Handle(handle)),
            LookupStep::Cached { code } => write!(f, "cached: {} {code}", code.0),
            LookupStep::Sites { from, sites } => {
                write!(f, "{from}: {} site{}", sites.len(), if sites.len() == 1 { "" } else { "s" })
            }
            LookupStep::Asked { target, try_number: 1 } => write!(f, "ask {target}"),
            LookupStep::Asked { target, try_number } => write!(f, "ask {target} again, attempt {try_number}"),
            LookupStep::Answered { target, code, kinds, took_ms, certified } => {
                write!(f, "{} answers {} {code}", target.address, code.0)?;
                write_kinds(f, kinds)?;
                write!(f, ", {took_ms} ms{}", if *certified { ", signature good" } else { "" })
            }
            LookupStep::Failed { target, error, took_ms } => {
                write!(f, "{}: {error}, {took_ms} ms", target.address)
            }
            LookupStep::Named { name, addresses } => {
                let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                let shown = if addresses.is_empty() { "nowhere".to_owned() } else { addresses.join(", ") };
                write!(f, "{name} is at {shown}")
            }
            LookupStep::Session { is_agreed: true } => f.write_str("a session is set up"),
            LookupStep::Session { is_agreed: false } => f.write_str("no session: continuing without one"),
            LookupStep::Proved => f.write_str("authenticated by challenge"),
            LookupStep::Alias { handle } => write!(f, "alias of {}", Handle(handle)),
        }
    }
}

/// The number of values of each type, in the order of the answer; the rest as a number.
fn write_kinds(f: &mut fmt::Formatter<'_>, kinds: &[Vec<u8>]) -> fmt::Result {
    const SHOWN_MAX: usize = 5;
    let mut counted: Vec<(&[u8], usize)> = vec![];
    for kind in kinds {
        let has_capacity = counted.len() < SHOWN_MAX;
        match counted.iter_mut().find(|(known, _)| *known == kind.as_slice()) {
            Some((_, count)) => *count += 1,
            None if has_capacity => counted.push((kind, 1)),
            None => {}
        }
    }
    for &(kind, count) in &counted {
        write!(f, ", {count} {}", Handle(kind))?;
    }
    match kinds.len() - counted.iter().map(|(_, count)| count).sum::<usize>() {
        0 => Ok(()),
        others => write!(f, ", {others} of other types"),
    }
}

impl fmt::Display for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, count) = self.position;
        let protocol = self.protocol.name().unwrap_or("?");
        let role = if self.is_primary { "primary" } else { "secondary" };
        match count {
            1 => write!(f, "{} over {protocol} ({role})", self.address),
            _ => write!(f, "{} over {protocol} (server {} of {count}, {role})", self.address, at + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::data::site::InterfaceProtocol;

    #[test]
    fn answers_are_summarised_by_type() {
        let answered = |kinds: &[&str]| {
            let target = ServerTarget::at(([192, 0, 2, 1], 2641).into(), InterfaceProtocol::UDP);
            let kinds = kinds.iter().map(|kind| kind.as_bytes().to_vec()).collect();
            let code = ResponseCode::SUCCESS;
            let step = LookupStep::Answered { target, code, kinds, took_ms: 3, certified: false };
            LookupEvent { at_ms: 0, depth: 1, step }.to_string()
        };
        assert_eq!(answered(&[]), "  192.0.2.1:2641 answers 1 success, 3 ms");
        assert_eq!(
            answered(&["HS_SITE", "URL", "HS_SITE"]),
            "  192.0.2.1:2641 answers 1 success, 2 HS_SITE, 1 URL, 3 ms"
        );
        assert_eq!(
            answered(&["A", "B", "C", "D", "E", "F", "A", "G"]),
            "  192.0.2.1:2641 answers 1 success, 2 A, 1 B, 1 C, 1 D, 1 E, 2 of other types, 3 ms"
        );
    }
}
