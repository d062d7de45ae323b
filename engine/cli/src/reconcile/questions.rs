//! Asks servers for the handles of a table, several at a time and at a limited rate.

use super::compare::{ComparedRecords, Difference, Finding, LeftOutRecords, WantedValues, differing_indexes};
use super::table::ReconcileTable;
use super::{Args, NamedIdentity, RequestPace};
use crate::server::ServerClients;
use crate::{advice, progress};
use anyhow::{Context as _, bail};
use crossbeam_channel::{Receiver, Sender, bounded};
use handle_client::administration::AdministrationAnswer;
use handle_proto::name::PREFIX_RECORDS;
use handle_proto::wire::list::{Indexes, Strings, Values};
use handle_proto::wire::query::Query;
use handle_proto::wire::{Request, Response};
use handle_proto::{OpFlags, ResponseCode, Value, fold};

/// Questions and findings that wait for each connection.
const QUEUE: usize = 16;
/// Questions without an answer, one after the other, after which the servers are taken to be down.
const UNANSWERED_MAX: u64 = 10;

/// A handle to ask for, with what is wanted.
struct HandleQuestion {
    handle: Vec<u8>,
    wanted: Option<WantedValues>,
    /// Whether there may be further values that are wanted.
    public_only: bool,
    /// Whether it is a record of a prefix, and not known to be homed.
    may_be_elsewhere: bool,
}

/// Asks for each handle of `wanted` that is homed, and returns their number.
///
/// # Errors
/// When the first question is not answered, or several after each other.
pub(super) fn ask_all(
    args: &Args,
    identity: &NamedIdentity,
    wanted: &ReconcileTable,
    take: &mut dyn FnMut(Finding) -> anyhow::Result<()>,
) -> anyhow::Result<ComparedRecords> {
    let has_identity = identity.is_some();
    let finder = args.server.finder()?;
    let connect = |_| {
        let mut clients = ServerClients::new(&args.server, finder.clone())?;
        clients.identify(identity.clone());
        Ok(clients)
    };
    let clients: Vec<_> = (0..args.parallel).map(connect).collect::<anyhow::Result<_>>()?;
    let bar = progress::bar("asking", Some(wanted.count()));
    let (ask, questions) = bounded(QUEUE * clients.len());
    let (sender, answers) = bounded(QUEUE * clients.len());
    let asked = std::thread::scope(|scope| {
        let reader = scope.spawn(move || hand_out(args, wanted, &ask));
        for clients in clients {
            let (questions, sender) = (questions.clone(), sender.clone());
            scope.spawn(move || work(args, clients, has_identity, &questions, &sender));
        }
        drop((questions, sender));
        let (mut count, mut unanswered, mut not_homed) = (0, 0, Vec::new());
        let taken = answers.iter().try_for_each(|finding: Option<Finding>| {
            bar.inc(1);
            if let Some(Finding { handle, difference: Difference::NotHomed, .. }) = finding {
                not_homed.push(handle);
                return Ok(());
            }
            count += 1;
            let Some(finding) = finding else {
                unanswered = 0;
                return Ok(());
            };
            unanswered = match &finding.difference {
                Difference::Unanswered(why) if unanswered + 1 == UNANSWERED_MAX => {
                    bail!("{UNANSWERED_MAX} handles in a row are not answered: {why}")
                }
                Difference::Unanswered(_) => unanswered + 1,
                _ => 0,
            };
            take(finding)
        });
        drop(answers);
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        taken?;
        let mut left_out = read?;
        not_homed.iter().for_each(|handle| left_out.add(handle));
        anyhow::Ok(ComparedRecords { count, left_out })
    });
    bar.finish_and_clear();
    asked
}

fn hand_out(
    args: &Args,
    wanted: &ReconcileTable,
    ask: &Sender<HandleQuestion>,
) -> anyhow::Result<LeftOutRecords> {
    let mut pace = RequestPace::new(args.rate);
    let (homed, folds) = (wanted.homed()?, wanted.folds()?);
    let mut left_out = LeftOutRecords::default();
    wanted.each(|record| {
        if !left_out.lets_through(homed, record.key(), folds) {
            return Ok(());
        }
        let values = (!wanted.has_names_only()).then(|| WantedValues::of(&record)).transpose()?;
        pace.wait();
        let public_only = wanted.has_public_values_only();
        let may_be_elsewhere = homed.is_none() && fold::starts_with(record.key(), PREFIX_RECORDS);
        let handle = record.key().to_vec();
        let question = HandleQuestion { handle, wanted: values, public_only, may_be_elsewhere };
        ask.send(question).ok().context("the comparison was stopped")
    })?;
    Ok(left_out)
}

fn work(
    args: &Args,
    mut clients: ServerClients<'_>,
    has_identity: bool,
    questions: &Receiver<HandleQuestion>,
    sender: &Sender<Option<Finding>>,
) {
    for question in questions {
        let judged = judge(args, &mut clients, has_identity, &question);
        let finding = judged.unwrap_or_else(|error| {
            let difference = Difference::Unanswered(advice::line(&error));
            let HandleQuestion { handle, .. } = question;
            Some(Finding { handle, difference, wanted: None, is_partial: true })
        });
        if sender.send(finding).is_err() {
            return;
        }
    }
}

/// Asks for one handle, and compares the answer; `None` if it is as wanted.
fn judge(
    args: &Args,
    clients: &mut ServerClients<'_>,
    has_identity: bool,
    question: &HandleQuestion,
) -> anyhow::Result<Option<Finding>> {
    let HandleQuestion { handle, wanted, public_only, may_be_elsewhere } = question;
    let request = Request::Resolution(Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY });
    let client = clients.of(handle)?;
    let mut answer = None;
    if has_identity {
        let all = client.ask(&request, OpFlags::PLAIN_REQUEST.without(OpFlags::PUBLIC_ONLY))?;
        // Rights may end at values that are not public.
        answer = (!(400..500).contains(&all.code().0)).then_some(all);
    }
    let is_partial = answer.is_none();
    let answer = match answer {
        Some(answer) => answer,
        None => client.ask(&request, OpFlags::PLAIN_REQUEST)?,
    };
    let compares_public = is_partial || *public_only;
    let difference = match (answer.code(), answer.reply().response) {
        (ResponseCode::HANDLE_NOT_FOUND, _) => Some(Difference::Missing),
        (_, Response::Answer(found)) => {
            compare(wanted.as_ref(), found.values.iter(), compares_public, args.timestamps)?
        }
        (ResponseCode::VALUES_NOT_FOUND, _) => {
            compare(wanted.as_ref(), std::iter::empty(), compares_public, args.timestamps)?
        }
        (ResponseCode::SERVER_NOT_RESPONSIBLE, _) if *may_be_elsewhere => Some(Difference::NotHomed),
        _ => bail!("{}", refusal(&answer)),
    };
    Ok(difference.map(|difference| Finding {
        handle: handle.clone(),
        // A record that does not exist has no values that a repair would delete.
        is_partial: *public_only || is_partial && !matches!(difference, Difference::Missing),
        difference,
        wanted: wanted.clone(),
    }))
}

fn compare<'a>(
    wanted: Option<&'a WantedValues>,
    found: impl Iterator<Item = Value<'a>>,
    public_only: bool,
    has_timestamps: bool,
) -> anyhow::Result<Option<Difference>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let wanted = Values::from_encoded(wanted.count, &wanted.encoded)?;
    let is_compared = |value: &Value<'_>| !public_only || value.is_public();
    let wanted = wanted.iter().filter(is_compared);
    let indexes = differing_indexes(wanted, found.filter(is_compared), has_timestamps);
    Ok((!indexes.is_empty()).then_some(Difference::Different(indexes)))
}

pub(super) fn refusal(answer: &AdministrationAnswer) -> String {
    let (code, text) = (answer.code(), answer.text());
    let colon = if text.is_empty() { "" } else { ": " };
    format!("the server answered {} {code}{colon}{text}", code.0)
}
