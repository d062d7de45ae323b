//! What a lookup does, step by step: for people who want to see the way.

use crate::exchange::AttemptError;
use crate::plan::ServerTarget;
use crate::service::SharedSite;
use handle_proto::{Handle, ResponseCode};
use std::fmt;
use std::net::IpAddr;

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupEvent {
    /// When, in milliseconds since the lookup began.
    pub at_ms: u64,
    /// How many questions stand behind this one: 0 for the one that was asked.
    pub depth: usize,
    /// What.
    pub step: LookupStep,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupStep {
    /// A handle is to be resolved.
    Question {
        /// Which.
        handle: Vec<u8>,
        /// What for.
        reason: QuestionReason,
    },
    /// It was known from before.
    Cached {
        /// What the answer was.
        code: ResponseCode,
    },
    /// Where to ask is known.
    Sites {
        /// From what.
        from: AnswerOrigin,
        /// The sites.
        sites: Vec<SharedSite>,
    },
    /// A server is asked.
    Asked {
        /// Which.
        target: ServerTarget,
        /// For which time.
        try_number: usize,
    },
    /// It answered.
    Answered {
        /// Which.
        target: ServerTarget,
        /// What came of it.
        code: ResponseCode,
        /// The types of the values that came.
        kinds: Vec<Vec<u8>>,
        /// How long it took, in milliseconds.
        took_ms: u32,
        /// Whether its signature was checked.
        certified: bool,
    },
    /// It did not, or not so that it could be believed.
    Failed {
        /// Which.
        target: ServerTarget,
        /// Why.
        error: AttemptError,
        /// After how long, in milliseconds.
        took_ms: u32,
    },
    /// The addresses of its name were looked up.
    Named {
        /// The name.
        name: String,
        /// Its addresses; none where it has none.
        addresses: Vec<IpAddr>,
    },
    /// It asked who asks, and was told.
    Proved,
    /// A session was asked for, so that it need not be proved again.
    Session {
        /// Whether the server agreed; without, each request is proved.
        is_agreed: bool,
    },
    /// The handle is another name of this one.
    Alias {
        /// Which.
        handle: Vec<u8>,
    },
}

/// What a handle is resolved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionReason {
    /// It was asked for.
    Asked,
    /// To find the service of its prefix.
    Prefix,
    /// A prefix record names it as the service.
    Service,
    /// A referral names it.
    Referral,
}

/// From where sites are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOrigin {
    /// The bootstrap file.
    Root,
    /// They were known beforehand.
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
            Self::Asked => "asked for",
            Self::Prefix => "where is the service of the prefix?",
            Self::Service => "the service that is named there",
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
            LookupStep::Cached { code } => write!(f, "known from before: {} {code}", code.0),
            LookupStep::Sites { from, sites } => {
                write!(f, "{from}: {} site{}", sites.len(), if sites.len() == 1 { "" } else { "s" })
            }
            LookupStep::Asked { target, try_number: 1 } => write!(f, "ask {target}"),
            LookupStep::Asked { target, try_number } => write!(f, "ask {target} again, time {try_number}"),
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
            LookupStep::Session { is_agreed: false } => f.write_str("no session comes about: on without"),
            LookupStep::Proved => f.write_str("asked who asks, and told"),
            LookupStep::Alias { handle } => write!(f, "another name of {}", Handle(handle)),
        }
    }
}

/// How many values of which type, in the order in which they came; the rest as a number.
fn write_kinds(f: &mut fmt::Formatter<'_>, kinds: &[Vec<u8>]) -> fmt::Result {
    const SHOWN_MAX: usize = 5;
    let mut counted: Vec<(&[u8], usize)> = vec![];
    for kind in kinds {
        let has_room = counted.len() < SHOWN_MAX;
        match counted.iter_mut().find(|(known, _)| *known == kind.as_slice()) {
            Some((_, count)) => *count += 1,
            None if has_room => counted.push((kind, 1)),
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
    fn what_came_is_said_by_type() {
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
