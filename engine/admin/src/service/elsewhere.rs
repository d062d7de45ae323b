//! Requests whose decision takes what other services say: asked for between one decision and the next, on the thread of
//! the request, which may wait.

use super::Service;
use crate::elsewhere::{Errand, Unanswered};
use crate::operation::{Answer, Asked, Decision, Key, Refused, Rules, Who, decide};
use crate::permission::sight::{Known, Wanted};
use crate::store::{Records, StoreError};
use handle_auth::answered::Answered;
use handle_auth::challenges::Challenge;
use handle_client::Answer as Told;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::kind::HS_PUBKEY;
use handle_proto::wire::auth::{self, ChallengeAnswer, Verification};
use handle_proto::wire::digest::RequestDigest;
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, ResponseCode, ValueBuf, Version, fold};
use std::borrow::Cow;
use zeroize::Zeroizing;

/// What one request knows of other services, and how it asks them.
pub(super) struct Outlook<'s> {
    pub(super) known: Known,
    /// None where other services are not asked.
    errand: Option<Errand<'s>>,
    /// Why the first thing that is not known is not.
    unanswered: Option<Unanswered>,
}

/// What an answer to a challenge is checked with.
pub(super) enum Proof {
    /// A key.
    Key(Key),
    /// What the service with the secret says.
    Told(bool),
}

impl Proof {
    /// The index of its value, if it is known.
    pub(super) const fn index(&self, claim: Reference<'_>) -> i32 {
        match self {
            Self::Key(key) => key.index,
            Self::Told(_) => claim.index,
        }
    }

    /// Whether the answer is right by it.
    pub(super) fn is_right(&self, answered: &Answered<'_>, kind: &[u8]) -> bool {
        match self {
            Self::Key(key) => answered.is_made_with(kind, &key.data),
            Self::Told(is_right) => *is_right,
        }
    }
}

impl Outlook<'_> {
    /// What is known, once nothing more will be asked: who asks next need not wait for what is done with it.
    pub(super) fn into_known(self) -> Known {
        self.known
    }

    /// Decides; asks other services for the first thing that the decision would have to know, and decides again.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn decide(
        &mut self,
        records: &impl Records,
        rules: &Rules,
        asked: &Asked<'_>,
        who: Who<'_>,
    ) -> Result<Decision, StoreError> {
        loop {
            let decision = decide(records, rules, asked, who, &self.known)?;
            let missing = self.known.take_missing().into_iter().next();
            let (Some(errand), Some(wanted), true) = (&mut self.errand, missing, decision.is_not_permitted())
            else {
                return Ok(self.told_why(decision));
            };
            let told = match &wanted {
                Wanted::Group { handle, index } => errand.value(Reference { handle, index: *index }),
                Wanted::Administrators(record) => errand.administrators(record),
            };
            let values = match told {
                Ok(answer) => answer.values().iter().map(|value| ValueBuf::from(&value)).collect(),
                Err(Unanswered::Busy) => return Ok(Decision::Answer(Answer::Refused(BUSY))),
                // Nothing more will be said, and a decision may miss a thousand things: each takes all the work again.
                Err(Unanswered::Enough) => {
                    self.unanswered.get_or_insert(Unanswered::Enough);
                    return Ok(self.told_why(decision));
                }
                Err(unanswered) => {
                    tracing::debug!(record = %wanted.handle(), why = %unanswered, "not asked elsewhere");
                    self.unanswered.get_or_insert(unanswered);
                    Vec::new()
                }
            };
            self.known.learn(wanted, values);
        }
    }

    /// A refusal that says that not everything could be found out. Whose record it is about is for the log: who is refused
    /// may not be one to know whom a record names.
    fn told_why(&self, decision: Decision) -> Decision {
        match (decision, &self.unanswered) {
            (Decision::Answer(Answer::Refused(Refused { code, text })), Some(unanswered))
                if code == ResponseCode::INVALID_ADMIN =>
            {
                let but = match unanswered {
                    Unanswered::Enough => "there is more to look up than is looked up",
                    Unanswered::Refused(_) => "one does not say",
                    _ => "one does not answer",
                };
                let text = format!("{text}, as far as is known of other services: {but}");
                Decision::Answer(Answer::Refused(Refused { code, text: Cow::Owned(text) }))
            }
            (decision, _) => decision,
        }
    }

    /// Whether the keys of who asks may be worth asking for, though it is not permitted with index 0: another value of
    /// the same handle is named.
    pub(super) fn is_worth_promoting(&self) -> bool {
        self.errand.is_some() && self.known.names_identity()
    }

    /// What proves who asks, where the handle is elsewhere: public keys, or what its service says of a secret.
    ///
    /// # Errors
    /// Why nobody can tell.
    pub(super) fn proofs(
        &mut self,
        challenge: &Challenge,
        answer: &ChallengeAnswer<'_>,
        keys_max: usize,
    ) -> Result<Vec<Proof>, Refused> {
        const NOT_ASKED: Refused = Refused::new(
            ResponseCode::AUTHENTICATION_FAILED,
            "This server can only check identities whose handles it has.",
        );
        let Some(errand) = &mut self.errand else { return Err(NOT_ASKED) };
        let identity = answer.identity;
        let told = match answer.auth_type {
            auth::PUBLIC_KEY => {
                errand.public_keys(identity).map(|told| keys_among(&told, identity, keys_max))
            }
            // Its service would check the answer as of the version in which it is asked, and find that a right one is wrong.
            _ if challenge.version < Version::LOWEST => return Err(NOT_ASKED),
            _ => {
                let [nonce, digest] = challenge.covered();
                // As deployed servers frame it, whatever the algorithm.
                let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest };
                let signed_response = answer.signed_response;
                let verification = Verification { identity, nonce, digest, signed_response };
                errand.verdict(&verification).map(|is_right| vec![Proof::Told(is_right)])
            }
        };
        told.map_err(|unanswered| match unanswered {
            Unanswered::Busy => BUSY,
            unanswered => {
                let name = Handle(identity.handle);
                tracing::debug!(identity = %name, why = %unanswered, "not checked elsewhere");
                let why = match unanswered {
                    Unanswered::Refused(_) => "did not say",
                    _ => "did not answer",
                };
                let text = format!("{}:{name} could not be checked: its service {why}.", identity.index);
                Refused { code: ResponseCode::AUTHENTICATION_ERROR, text: text.into() }
            }
        })
    }
}

const BUSY: Refused = Refused::new(
    ResponseCode::SERVER_BUSY,
    "Too many identities of other services are being looked up; ask again later.",
);

/// The public keys among what was told, in ascending order of their index.
fn keys_among(told: &Told, identity: Reference<'_>, most: usize) -> Vec<Proof> {
    let values = told.values().iter();
    let mut keys: Vec<Key> = values
        .filter(|value| {
            (identity.index == 0 || value.index == identity.index) && fold::eq(value.kind, HS_PUBKEY)
        })
        .map(|value| Key { index: value.index, data: Zeroizing::new(value.data.to_vec()) })
        .collect();
    keys.sort_by_key(|key| key.index);
    keys.truncate(most);
    keys.into_iter().map(Proof::Key).collect()
}

impl Service {
    /// What a request knows of other services before it has asked them: nothing.
    pub(super) fn outlook(&self) -> Outlook<'_> {
        let errand = self.elsewhere.as_ref().map(|elsewhere| elsewhere.errand());
        Outlook { known: Known::default(), errand, unanswered: None }
    }
}
