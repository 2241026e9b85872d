//! One container of a run: what is done to it and inside it.
//!
//! Owns: pausing, signalling, starting again, replacing, networks, commands inside, its log.
//! Does not own: making the first one, its name and port (`docker.rs`).
//! On failure: [`RunError`] with what the engine said.

use super::docker::{ContainerSpec, Docker, engine};
use crate::stack::RunError;
use bollard::container::LogOutput;
use bollard::exec::StartExecResults;
use bollard::models::{EndpointSettings, ExecConfig, NetworkConnectRequest, NetworkDisconnectRequest};
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
};
use futures_util::StreamExt;
use host_kit::Reserved;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::io::AsyncWriteExt;

/// How much of a container's log is shown with an error.
const LOG_TAIL_LINES: &str = "30";

/// A container of this run. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Container {
    docker: Docker,
    /// Another one once it was replaced.
    id: Rc<RefCell<String>>,
    spec: Rc<RefCell<ContainerSpec>>,
    /// Its name within the run.
    pub name: String,
    /// Where its port is on the loopback interface.
    reserved: Rc<Reserved>,
}

impl Container {
    pub(super) fn new(docker: Docker, id: String, spec: ContainerSpec, reserved: Reserved) -> Self {
        Self {
            docker,
            id: Rc::new(RefCell::new(id)),
            name: spec.name.clone(),
            reserved: Rc::new(reserved),
            spec: Rc::new(RefCell::new(spec)),
        }
    }

    /// Where its port is on the loopback interface, over its restarts too.
    #[must_use]
    pub fn host_port(&self) -> u16 {
        self.reserved.port()
    }

    /// Its name for the engine, and for others in its network.
    #[must_use]
    pub fn full_name(&self) -> String {
        self.docker.own(&self.name)
    }

    /// The network on which its port is published, and the port as others there reach it.
    #[must_use]
    pub fn published(&self) -> (String, u16) {
        let spec = self.spec.borrow();
        (spec.network.clone(), spec.port)
    }

    fn id(&self) -> String {
        self.id.borrow().clone()
    }

    /// Joins its other networks and starts.
    pub(super) async fn begin(&self) -> Result<(), RunError> {
        let also_in = self.spec.borrow().also_in.clone();
        for (network, alias) in &also_in {
            self.join(network, alias).await?;
        }
        self.restart().await
    }

    /// Takes it away and starts another one in its place, with this command, of the same name, port, networks and
    /// volumes. What it had outside its volumes is gone.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn replace(&self, cmd: Vec<String>) -> Result<(), RunError> {
        self.remove().await?;
        self.spec.borrow_mut().cmd = cmd;
        let spec = self.spec.borrow().clone();
        let id = self.docker.create(&spec, self.host_port()).await?;
        *self.id.borrow_mut() = id;
        self.begin().await
    }

    /// What the engine shows it to be: `running`, `paused`, `exited 137`.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn state(&self) -> Result<String, RunError> {
        let options = None::<InspectContainerOptions>;
        let inspected = self.docker.api.inspect_container(&self.id(), options).await;
        let state = inspected.map_err(self.failed("inspecting"))?.state.unwrap_or_default();
        let status = state.status.map(|status| status.to_string()).unwrap_or_default();
        Ok(match (status.as_str(), state.exit_code) {
            ("exited", Some(code)) => format!("exited {code}"),
            _ => status,
        })
    }

    fn failed(&self, what: &str) -> impl FnOnce(bollard::errors::Error) -> RunError + use<> {
        engine(format!("{what} {}", self.name))
    }

    /// Stops every process of it where it stands.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn pause(&self) -> Result<(), RunError> {
        let paused = self.docker.api.pause_container(&self.id()).await;
        paused.map_err(self.failed("pausing"))
    }

    /// Lets it run on.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn resume(&self) -> Result<(), RunError> {
        let resumed = self.docker.api.unpause_container(&self.id()).await;
        resumed.map_err(self.failed("resuming"))
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn kill(&self) -> Result<(), RunError> {
        self.signal("KILL").await
    }

    /// Sends its first process this signal (`INT`, `QUIT`, `KILL`).
    ///
    /// # Errors
    /// What the engine said.
    pub async fn signal(&self, signal: &str) -> Result<(), RunError> {
        let options = KillContainerOptionsBuilder::default().signal(signal).build();
        let sent = self.docker.api.kill_container(&self.id(), Some(options)).await;
        sent.map_err(self.failed(&format!("sending SIG{signal} to")))
    }

    /// Starts it again with the data it had, on the same port.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn restart(&self) -> Result<(), RunError> {
        self.docker.run(&self.id(), &self.name).await
    }

    /// Takes it out of a network. Where its port was published by another network, that stays.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn leave(&self, network: &str) -> Result<(), RunError> {
        let request = NetworkDisconnectRequest {
            container: self.id(),
            force: Some(true),
        };
        let left = self.docker.api.disconnect_network(network, request).await;
        left.map_err(self.failed("disconnecting"))
    }

    /// Puts it into a network under a name.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn join(&self, network: &str, alias: &str) -> Result<(), RunError> {
        let request = NetworkConnectRequest {
            container: self.id(),
            endpoint_config: Some(EndpointSettings {
                aliases: Some(vec![alias.to_owned()]),
                ..Default::default()
            }),
        };
        let joined = self.docker.api.connect_network(network, request).await;
        joined.map_err(self.failed("connecting"))
    }

    /// Its address in a network.
    ///
    /// # Errors
    /// What the engine said, and when it is not in that network.
    pub async fn address(&self, network: &str) -> Result<String, RunError> {
        let options = None::<InspectContainerOptions>;
        let inspected = self.docker.api.inspect_container(&self.id(), options).await;
        let networks = inspected
            .map_err(self.failed("inspecting"))?
            .network_settings
            .and_then(|settings| settings.networks)
            .unwrap_or_default();
        let address = networks.get(network).and_then(|endpoint| endpoint.ip_address.clone());
        address
            .filter(|address| !address.is_empty())
            .ok_or_else(|| RunError::Other(format!("{} has no address in {network}", self.name)))
    }

    /// Runs a command inside, as this user. Answers its exit code and what it printed.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn exec(&self, user: &str, command: &[&str]) -> Result<(i64, String), RunError> {
        self.exec_with(user, command, None).await
    }

    /// As [`Container::exec`], with this on the command's standard input.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn exec_with(
        &self,
        user: &str,
        command: &[&str],
        input: Option<&[u8]>,
    ) -> Result<(i64, String), RunError> {
        let api = &self.docker.api;
        let config = ExecConfig {
            attach_stdin: Some(input.is_some()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            user: (!user.is_empty()).then(|| user.to_owned()),
            cmd: Some(command.iter().map(|&word| word.to_owned()).collect()),
            ..Default::default()
        };
        let what = || self.failed(&format!("running {} in", command.join(" ")));
        let exec = api.create_exec(&self.id(), config).await.map_err(what())?.id;
        let mut printed = String::new();
        let started = api.start_exec(&exec, None).await.map_err(what())?;
        if let StartExecResults::Attached { mut output, input: to } = started {
            if let Some(bytes) = input {
                let mut to = to;
                to.write_all(bytes)
                    .await
                    .map_err(RunError::io("writing to a command"))?;
                to.shutdown().await.map_err(RunError::io("writing to a command"))?;
            }
            while let Some(chunk) = output.next().await {
                printed.push_str(&chunk.map_err(what())?.to_string());
            }
        }
        let inspected = api.inspect_exec(&exec).await.map_err(what())?;
        Ok((inspected.exit_code.unwrap_or(-1), printed))
    }

    /// As [`Container::exec`] for a command that has to succeed.
    ///
    /// # Errors
    /// As there, and when it does not exit with 0.
    pub async fn run(&self, user: &str, command: &[&str]) -> Result<String, RunError> {
        match self.exec(user, command).await? {
            (0, printed) => Ok(printed),
            (code, printed) => Err(RunError::Other(format!(
                "{} in {} exited with {code}: {}",
                command.join(" "),
                self.name,
                printed.trim()
            ))),
        }
    }

    /// The end of its log, for an error.
    pub async fn log_tail(&self) -> String {
        let options = LogsOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .tail(LOG_TAIL_LINES)
            .build();
        let chunks = self.docker.api.logs(&self.id(), Some(options));
        let lines: Vec<String> = chunks
            .filter_map(async |chunk| chunk.ok().as_ref().map(LogOutput::to_string))
            .collect()
            .await;
        lines.concat()
    }

    /// Takes it away with its data.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn remove(&self) -> Result<(), RunError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = self.docker.api.remove_container(&self.id(), Some(options)).await;
        removed.map_err(self.failed("removing"))
    }
}
