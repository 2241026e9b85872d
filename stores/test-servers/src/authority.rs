//! Certificates of a test's own.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// Somebody who vouches for others. Two of them do not know each other, whatever they are called.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// When no certificate can be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = made(CertificateParams::new(Vec::<String>::new()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(made(CertifiedIssuer::self_signed(params, made(KeyPair::generate()))))
    }

    /// Its own certificate, in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these hosts and its key, in PEM.
    ///
    /// # Panics
    /// When no certificate can be made.
    #[must_use]
    pub fn issue(&self, common: &str, hosts: &[&str], usage: ExtendedKeyUsagePurpose) -> (String, String) {
        self.issue_until(common, hosts, usage, None)
    }

    /// As [`Self::issue`], valid until the beginning of that year.
    ///
    /// # Panics
    /// When no certificate can be made.
    #[must_use]
    pub fn issue_until(
        &self,
        common: &str,
        hosts: &[&str],
        usage: ExtendedKeyUsagePurpose,
        year: Option<i32>,
    ) -> (String, String) {
        let names: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = made(CertificateParams::new(names));
        params.distinguished_name.push(DnType::CommonName, common);
        params.extended_key_usages = vec![usage];
        if let Some(year) = year {
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
        }
        let key = made(KeyPair::generate());
        (made(params.signed_by(&key, &self.0)).pem(), key.serialize_pem())
    }
}

fn made<T>(result: Result<T, rcgen::Error>) -> T {
    result.unwrap_or_else(|error| panic!("no certificate can be made: {error}"))
}
