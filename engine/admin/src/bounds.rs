//! The rights and bounds of the configuration, in the form in which the parts of the process take
//! them.

use crate::audit::{AuditBounds, FileBounds};
use crate::config::Config;
use crate::operation::OperationBounds;
use crate::permission::Administrators;
use crate::service::ChallengeEffort;
use handle_auth::challenges::ChallengeLimits;
use handle_auth::kdf::Pbkdf2Limits;
use handle_auth::source::SourceList;
use handle_daemon::identity::{InvalidIdentity, identities};

impl Config {
    /// The identities with permissions of the server.
    ///
    /// # Errors
    /// The first text that is not an identity.
    pub fn administrators(&self) -> Result<Administrators, InvalidIdentity> {
        let config = &self.administrators;
        Ok(Administrators {
            server: identities(&config.server)?,
            server_full_access: config.server_full_access,
            home_only: identities(&config.home_only)?,
            replication: identities(&config.replication)?,
            backup: identities(&config.backup)?,
            status: identities(&config.status)?,
            prefix_administrators: config.prefix_administrators,
            lookups_max: self.limits.group_lookups,
        })
    }

    /// Bounds of the lines that the audit log takes for requests without an effect.
    #[must_use]
    pub const fn audit_bounds(&self) -> AuditBounds {
        AuditBounds {
            lines_per_s: self.limits.audit_refusals_per_s,
            lines_per_source_per_s: self.limits.audit_refusals_per_source_per_s(),
            bytes_per_s: self.limits.audit_refusals_bytes_per_s(),
        }
    }

    /// Bounds of the files of the audit log.
    #[must_use]
    pub const fn audit_files(&self) -> FileBounds {
        FileBounds { bytes_max: self.limits.audit_file_bytes as u64, files_max: self.limits.audit_files }
    }

    /// Bounds of stored records.
    #[must_use]
    pub const fn bounds(&self) -> OperationBounds {
        OperationBounds {
            handle_bytes: self.limits.handle_bytes,
            values: self.limits.record_values,
            references: self.limits.value_references,
            record_bytes: self.limits.record_bytes,
            control_characters: self.allow_control_characters,
        }
    }

    /// Bounds of the work for an answer to a challenge.
    #[must_use]
    pub const fn effort(&self) -> ChallengeEffort {
        ChallengeEffort {
            pbkdf2: Pbkdf2Limits {
                iterations_max: self.limits.pbkdf2_iterations,
                key_bits_min: self.limits.pbkdf2_key_bits_min,
                key_bits_max: self.limits.pbkdf2_key_bits_max,
                work_max: self.limits.pbkdf2_work(),
            },
            keys_tried: self.limits.keys_tried,
            requires_sessions: self.require_sessions,
        }
    }

    /// Bounds of the challenges that wait for an answer.
    #[must_use]
    pub fn challenge_limits(&self) -> ChallengeLimits {
        ChallengeLimits {
            challenges_max: self.limits.challenges,
            bytes_max: self.limits.challenge_bytes(),
            per_source_max: self.limits.challenges_per_source(),
            datagrams_per_source_max: None,
            age_ms_max: self.limits.challenge_ms.into(),
            exempt: SourceList::parse(&self.limits.exempt_sources).unwrap_or_default(),
        }
    }
}
