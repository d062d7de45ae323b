//! Reading many records in one request: `POST /api/resolve`.
//!
//! Answers are sent in the order of the names, while later names are resolved. Names in the set are
//! answered without waiting; for the others, at most a 32nd of `upstream.questions` to other
//! services are in progress at a time.

use crate::api::body::ApiBody;
use crate::api::handles::AnswerBody;
use crate::api::json_input::{self, parse_beside};
use crate::api::request::{ApiRefusal, ApiRequest};
use crate::api::source_time::{RATE_PAUSE, TURN, take_turn};
use crate::body_collection::read_body;
use crate::body_streams;
use crate::connections::request_body::RequestBody;
use crate::record::{HttpQuestion, RecordAnswer};
use crate::refusal::HttpRefusal;
use crate::reply::GatewayResponse;
use crate::selection::ValueSelection;
use crate::state::GatewayState;
use crate::stream::{BodySender, ClientGone, ResponseBody};
use handle_client::question::AnswerWants;
use handle_daemon::permits::SourcePermit;
use handle_proto::ResponseCode;
use handle_proto::json::Json;
use handle_proto::limit::HANDLE_LEN_MAX;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The format of the body of a request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkForm {
    /// One JSON document.
    Document,
    /// One JSON document on each line.
    Lines,
}

impl BulkForm {
    /// The format of the body of a request; `None` for other media types.
    pub(super) fn of_body(headers: &HeaderMap) -> Option<Self> {
        let media = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        let media = media.split(';').next()?.trim();
        let has_media = |known: &str| media.eq_ignore_ascii_case(known);
        match () {
            () if has_media("application/json") => Some(Self::Document),
            () if LINES.iter().any(|lines| has_media(lines)) => Some(Self::Lines),
            () => None,
        }
    }

    /// The format that a client accepts.
    fn accepted(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(header::ACCEPT).iter().filter_map(|list| list.to_str().ok());
        let mut medias = lists.flat_map(|list| list.split(',')).filter_map(|media| media.split(';').next());
        match medias.any(|media| LINES.iter().any(|lines| media.trim().eq_ignore_ascii_case(lines))) {
            true => Self::Lines,
            false => Self::Document,
        }
    }

    pub(super) const fn media(self) -> HeaderValue {
        match self {
            Self::Document => HeaderValue::from_static("application/json;charset=utf-8"),
            Self::Lines => HeaderValue::from_static("application/x-ndjson;charset=utf-8"),
        }
    }
}

/// Media types of JSON lines.
const LINES: [&str; 3] = ["application/x-ndjson", "application/jsonl", "application/x-jsonlines"];

/// A name to resolve, or the reason why a part of the body is not a name.
type BulkName = Result<String, String>;

/// Bytes of answers for each name that a request may have, together: 16 MiB for 1000 names. Names
/// whose answers do not fit are not resolved.
const NAME_LEN: usize = 16 << 10;
/// The same for values among which answers are selected: a million for 1000 names,
/// which take about 100 ms of processor time.
const NAME_VALUES: usize = 1024;
/// Length of the answers that are kept for names that are repeated.
const REPEATED_LEN_MAX: usize = 16 << 10;
/// The message about a name that is not resolved.
const TOO_MUCH: &str = "The answers to this request are too long or too costly together: ask for this \
     handle in another request";

/// What a request may still cost.
#[derive(Debug)]
struct BulkBudget {
    bytes: usize,
    values: usize,
    /// Processor time that was taken, and not yet from that of the source.
    taken: Duration,
}

impl BulkBudget {
    const fn new(names_max: usize) -> Self {
        let [bytes, values] = [NAME_LEN, NAME_VALUES];
        let (bytes, values) = (names_max.saturating_mul(bytes), names_max.saturating_mul(values));
        Self { bytes, values, taken: Duration::ZERO }
    }

    /// Whether nothing is left.
    const fn is_over(&self) -> bool {
        self.bytes == 0 || self.values == 0
    }

    fn take(&mut self, shown: &ShownAnswer) {
        self.bytes = self.bytes.saturating_sub(shown.text.len());
        self.values = self.values.saturating_sub(shown.values_count);
    }

    /// Takes processor time from that of `source`, after each turn. Waits while it has none.
    async fn take_time(
        &mut self,
        state: &GatewayState,
        source: IpAddr,
        sender: &BodySender,
    ) -> Result<(), ClientGone> {
        while let Some(rest) = self.taken.checked_sub(TURN) {
            if sender.is_closed() {
                return Err(ClientGone);
            }
            match take_turn(state, source) {
                Ok(()) => self.taken = rest,
                Err(_) => tokio::time::sleep(RATE_PAUSE).await,
            }
        }
        Ok(())
    }
}

/// The answer for a name, and the number of values among which it was selected.
#[derive(Debug)]
struct ShownAnswer {
    text: String,
    values_count: usize,
}

/// The names of a request, and the question about each of them.
#[derive(Debug)]
struct BulkQuestion {
    names: Vec<BulkName>,
    selection: ValueSelection,
    /// The reservation of the body that has the names.
    _reservation: SourcePermit,
    wants: AnswerWants,
    refers: bool,
    source: IpAddr,
}

/// Answers a request to resolve many names.
pub(super) async fn resolve(
    state: &Arc<GatewayState>,
    request: &ApiRequest<'_>,
    body: RequestBody,
) -> GatewayResponse {
    let question = match read_question(state, request, body).await {
        Ok(question) => question,
        Err(refusal) => return refusal.respond(state, request, None),
    };
    let form = BulkForm::accepted(request.head.headers);
    let Some((sender, body)) = ResponseBody::streamed(state, request.peer.address) else {
        let settings = state.settings.current();
        return HttpRefusal::TooManyAnswers.respond_json(&settings);
    };
    let shared_state = Arc::clone(state);
    body_streams::spawn(state, async move {
        // If the client is gone, the other names are not resolved.
        let _ = answer_all(&shared_state, question, form, sender).await;
    });
    streamed(form, body)
}

/// The response with a body that is still being made.
pub(super) fn streamed(form: BulkForm, body: ResponseBody) -> GatewayResponse {
    let mut response = GatewayResponse::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, form.media());
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Reads the question from parameters and body.
async fn read_question(
    state: &GatewayState,
    request: &ApiRequest<'_>,
    body: RequestBody,
) -> Result<BulkQuestion, ApiRefusal> {
    let bad = |message: &str| ApiRefusal::bad(ResponseCode::PROTOCOL_ERROR, message);
    let form = BulkForm::of_body(request.head.headers)
        .ok_or_else(|| bad("Unsupported media type: send application/json or application/x-ndjson"))?;
    let (body, reservation) =
        read_body(state, request.peer.address, body, usize::MAX).await.map_err(|status| {
            let message = "The body is too long, or did not arrive in time";
            ApiRefusal::new(status, ResponseCode::PROTOCOL_ERROR, message)
        })?;
    let parameters = &request.parameters;
    let mut question = BulkQuestion {
        names: Vec::new(),
        selection: ValueSelection::of_parameters(parameters).map_err(|message| bad(&message))?,
        _reservation: reservation,
        wants: AnswerWants {
            certified: parameters.flag("cert").unwrap_or_default(),
            authoritative: parameters.flag("auth").unwrap_or_default(),
            public_only: true,
        },
        refers: !parameters.flag("doNotRefer").unwrap_or_default(),
        source: request.peer.address,
    };
    let names_max = state.settings.current().bulk.names;
    let read = parse_beside(body.len(), move || {
        match form {
            BulkForm::Document => question.read_document(&body, names_max)?,
            // One more name than allowed shows that there are too many.
            BulkForm::Lines => {
                let numbered = lines(&body).take(names_max + 1);
                question.names = numbered.map(|(number, line)| name_of_line(number, line)).collect();
            }
        }
        Ok(question)
    });
    let read: Option<Result<_, String>> = read.await;
    let question = read.ok_or_else(ApiRefusal::bug)?.map_err(|message| bad(&message))?;
    if question.names.len() > names_max {
        let message = format!("A request has at most {names_max} handles");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        return Err(ApiRefusal::new(status, ResponseCode::PROTOCOL_ERROR, &message));
    }
    Ok(question)
}

/// Items of JSON of a document besides its names.
const DOCUMENT_ITEMS: usize = 8192;
/// Items of JSON of a line: a name, and what else its object has.
const LINE_ITEMS_MAX: usize = 1024;

/// The lines that are not blank, with their numbers.
fn lines(body: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let numbered = body.split(|&byte| byte == b'\n').enumerate().map(|(at, line)| (at + 1, line));
    numbered.filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// The name on a line: a string, or an object with `handle`.
fn name_of_line(number: usize, line: &[u8]) -> BulkName {
    let json = json_input::parse(line, LINE_ITEMS_MAX)
        .map_err(|error| format!("Invalid JSON in line {number}, column {}", error.column()))?;
    match &json {
        Json::String(name) => Ok(name.clone()),
        _ => match json.get("handle").and_then(Json::as_str) {
            Some(name) => Ok(name.to_owned()),
            None => Err(format!("Line {number} is neither a string nor an object with `handle`")),
        },
    }
}

/// The items of a member that is an array or a single item.
fn items(member: Option<&Json>) -> &[Json] {
    match member {
        Some(Json::Array(items)) => items,
        Some(item) => std::slice::from_ref(item),
        None => &[],
    }
}

impl BulkQuestion {
    /// Reads an object with `handles` and optional `index` and `type`.
    fn read_document(&mut self, body: &[u8], names_max: usize) -> Result<(), String> {
        // With the indexes and types; one more name than allowed shows that there are too many.
        let items_max = 2 * names_max + DOCUMENT_ITEMS;
        let json = json_input::parse(body, items_max).map_err(|error| format!("Invalid JSON: {error}"))?;
        let Some(Json::Array(handles)) = json.get("handles") else {
            return Err("The body has no array `handles`".to_owned());
        };
        let name = |(at, handle): (usize, &Json)| {
            handle.as_str().map(str::to_owned).ok_or_else(|| format!("handles[{at}] is not a string"))
        };
        self.names = handles.iter().enumerate().map(name).collect();
        for index in items(json.get("index")) {
            let number = index.as_i64().and_then(|number| i32::try_from(number).ok());
            let number = number.ok_or_else(|| format!("Invalid index: {index} is not a number"))?;
            self.selection.add_index(number).map_err(|error| error.to_string())?;
        }
        for kind in items(json.get("type")) {
            let kind = kind.as_str().ok_or_else(|| format!("Invalid type: {kind} is not a string"))?;
            self.selection.add_type(kind.as_bytes()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// The question, without a name.
    fn about_no_name(&self) -> HttpQuestion {
        let question = self.selection.question(b"", self.wants);
        HttpQuestion::new(question, self.source).refers_if(self.refers)
    }

    /// The names that occur repeatedly.
    fn repeated_names(&self) -> HashSet<&str> {
        let (mut seen, mut repeated) = (HashSet::new(), HashSet::new());
        for name in self.names.iter().flatten() {
            if !seen.insert(name.as_str()) {
                repeated.insert(name.as_str());
            }
        }
        repeated
    }
}

/// The object that answers a question.
fn show(answer: &AnswerBody) -> String {
    answer.body.with_status(answer.status)
}

/// The object that shows `answer` to a question about `handle`.
fn shown(
    state: &GatewayState,
    http_question: &HttpQuestion,
    answer: &RecordAnswer<'_>,
    handle: &str,
) -> ShownAnswer {
    let text = show(&AnswerBody::of(state, http_question, answer, handle));
    ShownAnswer { text, values_count: answer.values.len() }
}

impl From<String> for ShownAnswer {
    fn from(text: String) -> Self {
        Self { text, values_count: 0 }
    }
}

/// The object for an invalid name.
fn error_object(code: ResponseCode, message: &str, handle: Option<&str>) -> String {
    ApiBody::failure(code, Some(message), handle).with_status(StatusCode::BAD_REQUEST)
}

/// The answer for `name`, if the set or its error gives it. `http_question` becomes the question
/// about it.
fn answer_here(
    state: &GatewayState,
    http_question: &mut HttpQuestion,
    name: &BulkName,
) -> Option<ShownAnswer> {
    let handle = match name {
        Ok(handle) => handle,
        Err(message) => return Some(error_object(ResponseCode::PROTOCOL_ERROR, message, None).into()),
    };
    if handle.is_empty() {
        return Some(error_object(ResponseCode::INVALID_HANDLE, "Empty handle invalid", None).into());
    }
    if handle.len() > HANDLE_LEN_MAX {
        let message = format!("A handle has at most {HANDLE_LEN_MAX} bytes");
        return Some(error_object(ResponseCode::INVALID_HANDLE, &message, None).into());
    }
    handle.as_bytes().clone_into(&mut http_question.question.handle);
    state.answer_here(http_question, |answer| shown(state, http_question, answer, handle))
}

/// Asks other services.
async fn ask(state: Arc<GatewayState>, http_question: HttpQuestion, at: usize) -> (usize, ShownAnswer) {
    let handle = String::from_utf8_lossy(&http_question.question.handle);
    let answered =
        state.answer(&http_question, |answer| shown(&state, &http_question, answer, &handle)).await;
    (at, answered.unwrap_or_else(|error| show(&AnswerBody::of_failure(&error, &handle)).into()))
}

/// The object for a name that is not resolved, because the budget of its request is used up.
fn left_out(name: &BulkName) -> String {
    let body =
        ApiBody::failure(ResponseCode::SERVER_BUSY, Some(TOO_MUCH), name.as_ref().ok().map(String::as_str));
    body.with_status(StatusCode::SERVICE_UNAVAILABLE)
}

/// Sends the answers for all names in their order.
async fn answer_all(
    state: &Arc<GatewayState>,
    question: BulkQuestion,
    form: BulkForm,
    sender: BodySender,
) -> Result<(), ClientGone> {
    let (questions_max, names_max) = {
        let settings = state.settings.current();
        (settings.upstream.questions_per_request(), settings.bulk.names)
    };
    let mut queue = AnswerQueue::new(form, sender, BulkBudget::new(names_max));
    let mut since = Instant::now();
    queue.begin().await?;
    let mut http_question = question.about_no_name();
    let mut repeated = RepeatedNames::of(question.repeated_names());
    for (at, name) in question.names.iter().enumerate() {
        state.counters.bulk_names.add();
        if queue.budget.is_over() {
            queue.put(at, left_out(name).into())?;
        } else if let Some(text) = repeated.known(name) {
            queue.put(at, text.into())?;
        } else {
            let begun = Instant::now();
            let answered = answer_here(state, &mut http_question, name);
            queue.budget.taken += begun.elapsed();
            match answered {
                Some(answer) => {
                    repeated.note(name, &answer.text);
                    queue.put(at, answer)?;
                }
                None => drop(queue.lookups.spawn(ask(Arc::clone(state), http_question.clone(), at))),
            }
        }
        queue.budget.take_time(state, question.source, &queue.sender).await?;
        queue.send_ready().await?;
        while queue.lookups.len() >= questions_max || (queue.is_full && !queue.lookups.is_empty()) {
            queue.receive().await?;
        }
        if since.elapsed() >= TURN {
            tokio::task::yield_now().await;
            since = Instant::now();
        }
    }
    while !queue.lookups.is_empty() {
        queue.receive().await?;
    }
    queue.finish().await
}

/// The names that a request has repeatedly, and the answers for those that are short.
struct RepeatedNames<'q> {
    answers: HashMap<&'q str, Option<String>>,
    len: usize,
}

impl<'q> RepeatedNames<'q> {
    fn of(names: HashSet<&'q str>) -> Self {
        Self { answers: names.into_iter().map(|name| (name, None)).collect(), len: 0 }
    }

    /// The answer for `name`, if it is kept.
    fn known(&self, name: &BulkName) -> Option<String> {
        self.answers.get(name.as_ref().ok()?.as_str())?.clone()
    }

    /// Keeps the answer for `name`, if there is capacity for it.
    fn note(&mut self, name: &BulkName, text: &str) {
        let Some(kept) = name.as_ref().ok().and_then(|name| self.answers.get_mut(name.as_str())) else {
            return;
        };
        if self.len + text.len() <= REPEATED_LEN_MAX {
            self.len += text.len();
            *kept = Some(text.to_owned());
        }
    }
}

/// Answers that wait until those of all earlier names are sent.
struct AnswerQueue {
    /// Questions to other services. Dropping this ends them.
    lookups: JoinSet<(usize, ShownAnswer)>,
    budget: BulkBudget,
    finished: BTreeMap<usize, String>,
    finished_len: usize,
    /// Whether so many finished answers wait for earlier ones that no further name is read.
    is_full: bool,
    /// Position of the next name whose answer is sent.
    next: usize,
    form: BulkForm,
    sender: BodySender,
}

impl AnswerQueue {
    fn new(form: BulkForm, sender: BodySender, budget: BulkBudget) -> Self {
        Self {
            lookups: JoinSet::new(),
            budget,
            finished: BTreeMap::new(),
            finished_len: 0,
            is_full: false,
            next: 0,
            form,
            sender,
        }
    }

    fn put(&mut self, at: usize, answer: ShownAnswer) -> Result<(), ClientGone> {
        self.budget.take(&answer);
        let text = answer.text;
        self.finished_len += text.len();
        self.finished.insert(at, text);
        self.count_finished()
    }

    fn count_finished(&mut self) -> Result<(), ClientGone> {
        self.is_full = !self.sender.keep(self.finished_len)?;
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), ClientGone> {
        match self.form {
            BulkForm::Document => self.sender.write("[").await,
            BulkForm::Lines => Ok(()),
        }
    }

    /// Waits for the answer to one question, and sends the answers that are ready.
    async fn receive(&mut self) -> Result<(), ClientGone> {
        self.sender.flush().await?;
        match self.lookups.join_next().await {
            Some(Ok((at, answer))) => self.put(at, answer)?,
            // A question that hit a bug has no answer, so the body ends early.
            Some(Err(_)) => return Err(ClientGone),
            None => {}
        }
        self.send_ready().await
    }

    /// Sends finished answers, up to the first unfinished one.
    async fn send_ready(&mut self) -> Result<(), ClientGone> {
        while let Some(text) = self.finished.remove(&self.next) {
            self.finished_len -= text.len();
            self.count_finished()?;
            if self.form == BulkForm::Document && self.next > 0 {
                self.sender.write(",\n").await?;
            }
            self.sender.write(&text).await?;
            if self.form == BulkForm::Lines {
                self.sender.write("\n").await?;
            }
            self.next += 1;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), ClientGone> {
        if self.form == BulkForm::Document {
            self.sender.write("]").await?;
        }
        self.sender.finish().await
    }
}
