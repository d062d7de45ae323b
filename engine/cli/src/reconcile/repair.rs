//! Sends wanted records to the servers that administer them.

use super::compare::{Difference, Finding};
use super::questions::refusal;
use super::{Args, NamedIdentity, RequestPace};
use crate::server::ServerClients;
use anyhow::{Context as _, bail};
use handle_proto::wire::Request;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::wire::list::Values;
use handle_proto::{Handle, OpFlags, ResponseCode};

/// The result of a repair.
pub(super) enum RepairOutcome {
    /// The server has changed its record.
    Repaired,
    /// It has not, for this reason.
    Refused(String),
}

/// Repairs records, one after the other.
pub(super) struct Repairer<'a> {
    clients: ServerClients<'a>,
    pace: RequestPace,
    deletes_extra: bool,
}

impl<'a> Repairer<'a> {
    /// Repairs as `identity`.
    pub(super) fn connect(args: &'a Args, identity: &NamedIdentity) -> anyhow::Result<Self> {
        let mut clients = ServerClients::new(&args.server, args.server.finder()?)?;
        clients.identify(identity.clone());
        Ok(Self { clients, pace: RequestPace::new(args.rate), deletes_extra: args.delete_extra })
    }

    /// Makes the record as it is wanted; `None` if there is nothing to do.
    ///
    /// # Errors
    /// When the server does not answer, or can change nothing at the moment.
    pub(super) fn repair(&mut self, finding: &Finding) -> anyhow::Result<Option<RepairOutcome>> {
        let handle = &finding.handle;
        let (request, flags) = match (&finding.difference, &finding.wanted) {
            (Difference::Unanswered(_) | Difference::NotHomed, _) => return Ok(None),
            (Difference::Extra, _) if !self.deletes_extra => return Ok(None),
            (Difference::Extra, _) => (Request::DeleteHandle(HandleBody { handle }), OpFlags::PLAIN_REQUEST),
            (_, None) => return Ok(None),
            _ if finding.is_partial => {
                let why = "values that are not public are not readable, and would be lost";
                return Ok(Some(RepairOutcome::Refused(why.to_owned())));
            }
            (difference, Some(wanted)) => {
                let values = Values::from_encoded(wanted.count, &wanted.encoded)?;
                let body = HandleValues { handle, values };
                let flags = match difference {
                    Difference::Different(_) => OpFlags::PLAIN_REQUEST.with(OpFlags::OVERWRITE),
                    _ => OpFlags::PLAIN_REQUEST,
                };
                (Request::CreateHandle(body), flags)
            }
        };
        self.pace.wait();
        let shown = || format!("cannot repair {}", Handle(handle));
        let answer = self.clients.of(handle).and_then(|client| Ok(client.ask(&request, flags)?));
        let answer = answer.with_context(shown)?;
        match answer.code() {
            ResponseCode::SUCCESS => Ok(Some(RepairOutcome::Repaired)),
            ResponseCode::SERVER_BUSY | ResponseCode::SERVER_READ_ONLY => {
                bail!("{}: {}", shown(), refusal(&answer))
            }
            _ => Ok(Some(RepairOutcome::Refused(refusal(&answer)))),
        }
    }
}
