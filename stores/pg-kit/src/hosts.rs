//! Which of several hosts is connected to.
//!
//! Owns: the order in which the hosts of a URL are tried, and how long one of them is waited for alone.
//! Does not own: what a connection is (the driver), how long all of it may take ([`crate::Connector`] and its callers).
//! On failure: the failure of the host that was tried last.
//!
//! The driver tries one host after the other and bounds the TCP handshake alone: a host that accepts and then says
//! nothing, as the kernel does for a frozen server, would hide every other for ever.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::LoadBalanceHosts;

/// How long a host may take before the next one is asked as well.
const ALONE: Duration = Duration::from_millis(300);

/// The hosts of one URL.
#[derive(Clone)]
pub(crate) struct Hosts {
    /// One configuration for each host, in the URL's order.
    each: Vec<Config>,
    /// The host that was connected to last: tried first the next time, so that a lost one costs once.
    favourite: Arc<AtomicUsize>,
}

impl Hosts {
    /// Those of a configuration. Where the driver is to choose at random it goes on choosing.
    pub(crate) fn of(config: &Config) -> Self {
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        let each = if count < 2 || config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            vec![config.clone()]
        } else {
            (0..count).map(|n| one_of(config, n)).collect()
        };
        Self {
            each,
            favourite: Arc::default(),
        }
    }

    /// Connects to the first host that lets itself be connected to. A host that has not answered after [`ALONE`] is asked
    /// further, and the next one as well.
    pub(crate) async fn connect<T, E, F>(&self, mut to: impl FnMut(&Config) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let first = self.favourite.load(Ordering::Relaxed);
        let mut untried = (0..self.each.len()).map(|n| (first + n) % self.each.len());
        let mut start = |n: usize| {
            let attempt = to(&self.each[n]);
            async move { (n, attempt.await) }
        };
        let mut attempts = FuturesUnordered::new();
        attempts.extend(untried.next().map(&mut start));
        loop {
            let ended = tokio::select! {
                biased;
                ended = attempts.next() => ended,
                () = tokio::time::sleep(ALONE), if untried.len() > 0 => {
                    attempts.extend(untried.next().map(&mut start));
                    continue;
                }
            };
            match ended {
                Some((n, Ok(connected))) => {
                    self.favourite.store(n, Ordering::Relaxed);
                    return Ok(connected);
                }
                Some((_, Err(error))) => match untried.next() {
                    Some(n) => attempts.push(start(n)),
                    None if attempts.is_empty() => return Err(error),
                    None => {}
                },
                // Never: there is at least one host, and the last one's end returns.
                None => std::future::pending().await,
            }
        }
    }
}

/// The configuration with its `n`th host alone.
fn one_of(all: &Config, n: usize) -> Config {
    let mut one = Config::new();
    if let Some(host) = all.get_hosts().get(n) {
        match host {
            tokio_postgres::config::Host::Tcp(name) => one.host(name),
            #[cfg(unix)]
            tokio_postgres::config::Host::Unix(path) => one.host_path(path),
        };
    }
    if let Some(address) = all.get_hostaddrs().get(n) {
        one.hostaddr(*address);
    }
    // One port for each host, or one for all.
    if let Some(port) = all.get_ports().get(n).or_else(|| all.get_ports().first()) {
        one.port(*port);
    }
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(name) = all.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(within) = all.get_connect_timeout() {
        one.connect_timeout(*within);
    }
    if let Some(within) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(*within);
    }
    if let Some(every) = all.get_keepalives_interval() {
        one.keepalives_interval(every);
    }
    if let Some(times) = all.get_keepalives_retries() {
        one.keepalives_retries(times);
    }
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding());
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::str::FromStr;

    fn hosts(url: &str) -> Hosts {
        Hosts::of(&Config::from_str(url).unwrap())
    }

    #[test]
    fn a_configuration_of_one_host_says_of_it_what_that_of_all_did() {
        let rest = "?sslmode=require&connect_timeout=3&tcp_user_timeout=4&keepalives=0&keepalives_idle=7\
                    &keepalives_interval=8&keepalives_retries=9&target_session_attrs=read-write\
                    &channel_binding=require&application_name=a&options=-c%20b%3Dc";
        let all = hosts(&format!("postgres://me:secret@a:1,b:2,c:3/db{rest}"));
        let singly: Vec<Config> = ["a:1", "b:2", "c:3"]
            .iter()
            .map(|host| Config::from_str(&format!("postgres://me:secret@{host}/db{rest}")).unwrap())
            .collect();
        assert_eq!(all.each, singly);
        let one_port = hosts("host=a,b port=5 user=me").each;
        assert_eq!(one_port[1], Config::from_str("host=b port=5 user=me").unwrap());
        let by_address = hosts("host=a,b hostaddr=127.0.0.1,127.0.0.2 user=me").each;
        let second = Config::from_str("host=b hostaddr=127.0.0.2 user=me").unwrap();
        assert_eq!(by_address[1], second);
    }

    #[test]
    fn one_host_and_a_choice_at_random_are_left_to_the_driver() {
        for url in ["postgres://me@a/db", "postgres://me@a,b/db?load_balance_hosts=random"] {
            assert_eq!(hosts(url).each, [Config::from_str(url).unwrap()], "{url}");
        }
    }

    /// Which host, by its port.
    fn port(config: &Config) -> u16 {
        config.get_ports()[0]
    }

    #[tokio::test(start_paused = true)]
    async fn the_host_that_served_last_is_tried_first() {
        let hosts = hosts("postgres://me@a:1,b:2,c:3/db");
        let asked = RefCell::default();
        let connect = async || {
            let answer = hosts.connect(|config| {
                let port = port(config);
                RefCell::<Vec<u16>>::borrow_mut(&asked).push(port);
                async move {
                    match port {
                        1 => std::future::pending().await,
                        2 => Err("refused"),
                        _ => Ok(port),
                    }
                }
            });
            (answer.await, asked.take())
        };
        assert_eq!(connect().await, (Ok(3), vec![1, 2, 3]));
        assert_eq!(connect().await, (Ok(3), vec![3]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_host_may_still_answer_while_others_are_asked() {
        let hosts = hosts("postgres://me@a:1,b:2/db");
        let answer = hosts.connect(|config| {
            let port = port(config);
            async move {
                tokio::time::sleep(if port == 1 { 2 * ALONE } else { 60 * ALONE }).await;
                Ok::<u16, ()>(port)
            }
        });
        assert_eq!(answer.await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn every_host_is_tried_before_the_failure_is_told() {
        let hosts = hosts("postgres://me@a:1,b:2/db");
        let answer = hosts.connect(|config| {
            let port = port(config);
            async move { Err::<(), u16>(port) }
        });
        assert_eq!(answer.await, Err(2));
    }
}
