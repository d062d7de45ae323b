//! From the handle of a request to a response: resolves its record, and those to which it leads.

use super::respond::PageRequest;
use super::rules::ProxyRules;
use crate::accept::AcceptTypes;
use crate::api::body::ApiFormat;
use crate::api::handles;
use crate::api::request::ApiRequest;
use crate::connections::certificate::ConnectionCertificate;
use crate::location::{LocationSet, is_document};
use crate::pages::{AnswerDetails, AnswerSource, ErrorPage, PageError, RecordPage};
use crate::peer::HttpPeer;
use crate::record::{HttpQuestion, RecordAnswer, RecordOrigin};
use crate::redirect::{
    AliasChain, ProxyAction, ProxyDecision, ProxyRedirect, ProxyRequest, ProxyStep, ShowReason, choose,
    next_step, plain_redirect,
};
use crate::reply::{Freshness, GatewayResponse, no_capacity};
use crate::route::Route;
use crate::state::GatewayState;
use crate::upstream::UpstreamError;
use handle_client::Question;
use handle_client::question::AnswerWants;
use handle_client::service::keeps_s;
use handle_console::parameters::Parameters;
use handle_proto::data::kind;
use handle_proto::{Handle, ResponseCode, Value, fold};
use hyper::{StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// A request for a handle.
#[derive(Debug)]
pub(super) struct HandleRequest<'r> {
    /// Where answers come from.
    pub(super) state: &'r GatewayState,
    /// The rules in force.
    pub(super) rules: &'r ProxyRules,
    /// What pages depend on.
    pub(super) page: PageRequest<'r>,
    /// What decisions depend on.
    pub(super) proxy: ProxyRequest<'r>,
    /// Who asks.
    pub(super) peer: HttpPeer,
    /// The certificate of the client, where clients may show one.
    pub(super) certificate: Option<&'r ConnectionCertificate>,
    /// The handle.
    pub(super) handle: &'r str,
    /// When the request arrived.
    pub(super) since: Instant,
    /// The ages of the records that were used.
    pub(super) ages: RecordAges,
}

/// The ages of the records that were used for an answer.
#[derive(Debug, Default)]
pub(super) struct RecordAges {
    /// Whether one has expired.
    has_stale: AtomicBool,
    /// The greatest age.
    age_s: AtomicU32,
}

/// What is next.
#[derive(Debug)]
enum NextStep {
    /// Resolve the last handle of the chain.
    Resolve,
    /// Choose among the locations of a record from this origin.
    Locate(LocationSet, RecordOrigin),
    /// Show the record of the last handle.
    Show(ShowReason),
    /// Answer as the JSON API.
    Json,
    /// Answer.
    Respond(GatewayResponse),
}

impl HandleRequest<'_> {
    /// Resolves the handle, and answers.
    pub(super) async fn answer(&self) -> GatewayResponse {
        let mut chain = AliasChain::new(self.handle.as_bytes());
        let mut next = NextStep::Resolve;
        loop {
            let answered = match next {
                NextStep::Resolve => {
                    let http_question = self.question(chain.handle());
                    self.state.answer(&http_question, |answer| self.step(answer, &mut chain)).await
                }
                NextStep::Locate(locations, origin) => Ok(self.locate(locations, origin, &chain).await),
                NextStep::Show(reason) => {
                    let http_question = self.question(chain.handle());
                    let show =
                        |answer: &RecordAnswer<'_>| NextStep::Respond(self.show(answer, &reason, &chain));
                    self.state.answer(&http_question, show).await
                }
                NextStep::Json => return self.json().await,
                NextStep::Respond(response) => return response,
            };
            next = match answered {
                Ok(next) => next,
                Err(_) if self.wants_json() => NextStep::Json,
                Err(error) => return self.refuse(&error, chain.handle()),
            };
        }
    }

    /// Whether the answer is that of the API, also about what is not found.
    fn wants_json(&self) -> bool {
        self.proxy.parameters.action == Some(ProxyAction::ShowJson)
    }

    fn wants(&self) -> AnswerWants {
        let parameters = self.proxy.parameters;
        AnswerWants {
            certified: parameters.certified,
            authoritative: parameters.authoritative,
            public_only: true,
        }
    }

    /// The question for the requested values of `handle`.
    fn question(&self, handle: Handle<'_>) -> HttpQuestion {
        let parameters = self.proxy.parameters;
        let question = parameters.selection.question(handle.0, self.wants());
        HttpQuestion::new(question, self.peer.address)
    }

    /// What follows from the record of the last handle of the chain.
    fn step(&self, answer: &RecordAnswer<'_>, chain: &mut AliasChain) -> NextStep {
        self.note_age(answer);
        if answer.code != ResponseCode::SUCCESS {
            return match self.wants_json() {
                true => NextStep::Json,
                false => NextStep::Respond(self.fail(answer, chain.handle())),
            };
        }
        if let Some(redirect) = self.plain_redirect(answer, chain) {
            return NextStep::Respond(self.page.redirect(redirect, self.proxy.now_unix_s));
        }
        let values: Vec<Value<'_>> = answer.values.iter().collect();
        match next_step(&self.proxy, &values, chain) {
            ProxyStep::FollowAlias(_) => NextStep::Resolve,
            ProxyStep::Locate(locations) => NextStep::Locate(locations, answer.origin),
            ProxyStep::Answer(ProxyDecision::ShowRecord(reason)) => {
                NextStep::Respond(self.show(answer, &reason, chain))
            }
            ProxyStep::Answer(decision) => self.carry_out(decision, chain),
        }
    }

    /// Notes that a record is used, on whose age depends how long the response may be cached.
    fn note_age(&self, answer: &RecordAnswer<'_>) {
        self.ages.has_stale.fetch_or(answer.is_stale, Ordering::Relaxed);
        self.ages.age_s.fetch_max(answer.age_s, Ordering::Relaxed);
    }

    /// How long the response may be cached that would be cached for `keeps_s` if all records that
    /// were used had just arrived.
    fn keeps_s(&self, keeps_s: u32) -> u32 {
        match self.ages.has_stale.load(Ordering::Relaxed) {
            true => 0,
            false => keeps_s.saturating_sub(self.ages.age_s.load(Ordering::Relaxed)),
        }
    }

    /// The redirect to the only target of a record of the set, if it is so simple.
    fn plain_redirect(&self, answer: &RecordAnswer<'_>, chain: &AliasChain) -> Option<ProxyRedirect> {
        if chain.aliases_count() > 0 || !matches!(answer.origin, RecordOrigin::Set { .. }) {
            return None;
        }
        let redirect = plain_redirect(&self.proxy, answer.values.iter())?;
        let prefix = Question::all(chain.handle().prefix_record());
        let inherits =
            self.state.reading.stored(&prefix, |answer| answer.values.iter().any(|it| is_document(&it)));
        (inherits != Some(true)).then_some(redirect)
    }

    /// What a decision amounts to.
    fn carry_out(&self, decision: ProxyDecision, chain: &AliasChain) -> NextStep {
        let missing = Freshness::Seconds(self.keeps_s(self.page.settings.caching.negative_s));
        NextStep::Respond(match decision {
            ProxyDecision::Redirect(mut redirect) => {
                redirect.cache_s = self.keeps_s(redirect.cache_s);
                self.page.redirect(redirect, self.proxy.now_unix_s)
            }
            ProxyDecision::ShowRecord(reason) => return NextStep::Show(reason),
            ProxyDecision::ShowJson => return NextStep::Json,
            ProxyDecision::ShowLocations(xml) => self.page.xml(xml, Freshness::NoStore),
            ProxyDecision::NotFound(reason) => {
                self.error_page(reason.into(), chain.handle(), None, |page| self.page.error(&page, missing))
            }
            ProxyDecision::Refused(reason) => {
                let show = |page: ErrorPage<'_>| self.page.error(&page, Freshness::NoStore);
                self.error_page(reason.into(), chain.handle(), None, show)
            }
        })
    }

    /// Shows the page about an error, with the contact for the prefix and the reason why it is not
    /// active.
    fn error_page(
        &self,
        error: PageError,
        handle: Handle<'_>,
        reason: Option<&str>,
        show: impl FnOnce(ErrorPage<'_>) -> GatewayResponse,
    ) -> GatewayResponse {
        let notice = self.state.notice(handle, self.peer.address);
        let contact = notice.contact.as_deref().or(self.page.settings.pages.contact.as_deref());
        let message = notice.message.as_deref().filter(|_| !notice.is_active());
        let page = ErrorPage::new(self.page.frame, error).about(handle).with_notice(contact, message);
        show(match reason {
            Some(reason) => page.because(reason),
            None => page,
        })
    }

    /// Adds the locations of further records, and chooses one.
    async fn locate(&self, mut locations: LocationSet, origin: RecordOrigin, chain: &AliasChain) -> NextStep {
        let handle = chain.handle();
        let is_complete = self.inherit(&mut locations, origin, handle).await;
        let is_choice = locations.candidates().nth(1).is_some();
        let accept = locations.depends_on_accept().then(|| AcceptTypes::parse(&self.accept()));
        let countries = self.rules.countries.as_ref().filter(|_| is_choice);
        let country = countries.and_then(|countries| countries.country(self.peer.address));
        let request = ProxyRequest {
            accept: accept.as_ref(),
            country: country.as_deref(),
            random: if is_choice { u64::from_le_bytes(handle_auth::random()) } else { 0 },
            ..self.proxy
        };
        let mut decision = choose(&request, &locations, handle);
        if let ProxyDecision::Redirect(redirect) = &mut decision
            && !is_complete
        {
            redirect.cache_s = 0;
        }
        self.carry_out(decision, chain)
    }

    /// Adds the locations of further records. Returns whether all of them were answered for.
    ///
    /// For a record of the set, that of its prefix counts only if the set has it too: redirects
    /// from the set do not wait for other services.
    async fn inherit(&self, locations: &mut LocationSet, origin: RecordOrigin, handle: Handle<'_>) -> bool {
        let is_from_set = matches!(origin, RecordOrigin::Set { .. });
        let mut is_complete = true;
        for name in locations.further_records(handle) {
            let stays_here = is_from_set && fold::eq(&name, &handle.prefix_record());
            let question = Question { wants: self.wants(), ..Question::of_types(name, &[kind::LOCATIONS]) };
            if self
                .state
                .reading
                .stored(&question, |answer| locations.inherit(answer.values.iter()))
                .is_some()
                || stays_here
            {
                continue;
            }
            let http_question = HttpQuestion::new(question, self.peer.address);
            let add = |answer: &RecordAnswer<'_>| {
                self.note_age(answer);
                if answer.code == ResponseCode::SUCCESS {
                    locations.inherit(answer.values.iter());
                }
            };
            is_complete &= self.state.answer(&http_question, add).await.is_ok();
        }
        is_complete
    }

    /// The types that the client accepts.
    fn accept(&self) -> String {
        let lists = self.page.head.headers.get_all(header::ACCEPT).iter();
        lists.filter_map(|list| list.to_str().ok()).collect::<Vec<_>>().join(",")
    }

    /// The page with the requested values.
    fn show(&self, answer: &RecordAnswer<'_>, reason: &ShowReason, chain: &AliasChain) -> GatewayResponse {
        if answer.code != ResponseCode::SUCCESS {
            // The record was there before the locations of others were asked for.
            return self.fail(answer, chain.handle());
        }
        let parameters = self.proxy.parameters;
        let values: Vec<Value<'_>> =
            answer.values.iter().filter(|value| value.is_public() && parameters.selects(value)).collect();
        // The page has more bytes for each value than the longest answer without markup.
        if !self.state.has_capacity_for(self.peer.address, values.iter().map(Value::encoded_len).sum()) {
            return no_capacity();
        }
        let aliases: Vec<Handle<'_>> = chain.handles().take(chain.aliases_count()).collect();
        let (set_name, server_name);
        let source = match answer.origin {
            RecordOrigin::Set { generation } => {
                let mapped = self.state.reading.set.as_ref();
                set_name = mapped.map(|mapped| mapped.name()).unwrap_or_default();
                let published = mapped.and_then(|mapped| mapped.published_unix_s(generation));
                AnswerSource::Set { name: &set_name, generation, published_unix_s: published }
            }
            RecordOrigin::Upstream { cached: false, server: Some(server) } => {
                server_name = server.to_string();
                AnswerSource::Server { name: &server_name }
            }
            RecordOrigin::Upstream { .. } => AnswerSource::Cache,
        };
        let details = AnswerDetails {
            source,
            certified: answer.certified,
            took_us: u32::try_from(self.since.elapsed().as_micros()).unwrap_or(u32::MAX),
            aliases: &aliases,
            steps: &[],
        };
        let (frame, schemes) = (self.page.frame, &self.proxy.rules.schemes);
        let html = RecordPage::new(frame, chain.handle(), &values, &details, reason, schemes).html();
        self.note_age(answer);
        let keeps = values.iter().map(|value| keeps_s(value.ttl, self.proxy.now_unix_s)).min();
        let keeps = keeps.map(|keeps| self.keeps_s(keeps));
        self.page.html(StatusCode::OK, html, keeps.map_or(Freshness::NoStore, Freshness::Seconds))
    }

    /// The page about an answer without values.
    fn fail(&self, answer: &RecordAnswer<'_>, handle: Handle<'_>) -> GatewayResponse {
        let is_all = self.proxy.parameters.selection.is_empty();
        let error = match answer.code {
            ResponseCode::HANDLE_NOT_FOUND => PageError::NotFound,
            ResponseCode::VALUES_NOT_FOUND if !is_all => PageError::NoSuchValues,
            ResponseCode::VALUES_NOT_FOUND | ResponseCode(400..=406) => PageError::NoPublicValues,
            ResponseCode::SERVER_BUSY => PageError::Busy,
            ResponseCode::ERROR => PageError::Upstream,
            ResponseCode::SERVER_NOT_RESPONSIBLE
            | ResponseCode::SERVICE_REFERRAL
            | ResponseCode::PREFIX_REFERRAL => PageError::UnknownPrefix,
            _ => PageError::Invalid,
        };
        let negative = Freshness::Seconds(self.keeps_s(self.page.settings.caching.negative_s));
        let reason = Some(answer.text).filter(|text| !text.is_empty());
        self.error_page(error, handle, reason, |page| match error.status() {
            404 => self.page.error(&page, negative),
            502.. => self.page.try_again(page),
            _ => self.page.error(&page, Freshness::NoStore),
        })
    }

    /// The answer when upstream gave none. It never says that the handle does not exist.
    fn refuse(&self, failure: &UpstreamError, handle: Handle<'_>) -> GatewayResponse {
        let error = match failure.status() {
            StatusCode::SERVICE_UNAVAILABLE => PageError::Busy,
            StatusCode::GATEWAY_TIMEOUT => PageError::Timeout,
            _ => PageError::Upstream,
        };
        let reason = failure.to_string();
        self.error_page(error, handle, Some(&reason), |page| self.page.try_again(page))
    }

    /// The answer of the JSON API to the same request.
    async fn json(&self) -> GatewayResponse {
        let parameters = Parameters::parse(self.proxy.query);
        let format = ApiFormat::of(&parameters).unwrap_or_default();
        let (head, peer, certificate) = (self.page.head, self.peer, self.certificate);
        let request = ApiRequest {
            head,
            peer,
            certificate,
            path: "",
            route: Route::Record,
            name: "",
            parameters,
            format,
        };
        let handle = utf8_percent_encode(self.handle, NON_ALPHANUMERIC).to_string();
        handles::read(self.state, &request, &handle).await
    }
}
