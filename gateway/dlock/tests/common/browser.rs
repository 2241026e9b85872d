//! A real browser: chromium without a window, driven over WebDriver.

use fantoccini::{Client, ClientBuilder, Locator};
use host_kit::Reserved;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How a window looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub dark: bool,
    pub width: u32,
    pub height: u32,
}

impl Look {
    pub const WIDE: Self = Self {
        dark: false,
        width: 1280,
        height: 900,
    };
    pub const DARK: Self = Self {
        dark: true,
        ..Self::WIDE
    };
    pub const NARROW: Self = Self {
        dark: false,
        width: 500,
        height: 900,
    };
}

/// Whether there is a browser. With `CI=true` a machine without one is a failure.
pub fn there_is_one() -> bool {
    let answers = |program: &str| {
        let asked = Command::new(program).arg("--version").output();
        asked.is_ok_and(|output| output.status.success())
    };
    if answers("chromium") && answers("chromedriver") {
        return true;
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no browser for this test: install chromium and chromium-driver"
    );
    eprintln!("\n*** SKIPPED: no browser for this test: install chromium and chromium-driver ***\n");
    false
}

/// The driver as a process.
pub struct Driver {
    child: Child,
    kept: Reserved,
}

impl Driver {
    pub fn start() -> Self {
        // Left to choose, it takes a port that is free at [::1] and ends where 127.0.0.1 has that port in use.
        let kept = test_servers::reserved();
        let mut child = Command::new("chromedriver")
            .arg(format!("--port={}", kept.port()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = Vec::new();
        let listens = stdout.lines().map_while(Result::ok).any(|line| {
            let listens = line.contains("started successfully on port");
            said.push(line);
            listens
        });
        assert!(listens, "the driver does not listen: {}", said.join("\n"));
        Self { child, kept }
    }

    /// A new window.
    pub async fn window(&self, look: Look) -> Window {
        let colours = if look.dark { 0 } else { 1 };
        let options = json!({
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                "--force-device-scale-factor=1",
                format!("--window-size={},{}", look.width, look.height),
                format!("--blink-settings=preferredColorScheme={colours}"),
            ],
        });
        let mut capabilities = serde_json::Map::new();
        capabilities.insert("goog:chromeOptions".to_owned(), options);
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://{}", self.kept.address()))
            .await
            .unwrap();
        client.set_window_size(look.width, look.height).await.unwrap();
        Window { client }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One window.
pub struct Window {
    pub client: Client,
}

impl Window {
    pub async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    /// The text of the first element that fits, as it is seen.
    pub async fn text(&self, css: &str) -> String {
        self.client
            .find(Locator::Css(css))
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"))
            .text()
            .await
            .unwrap()
    }

    /// What a script answers.
    pub async fn eval(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// Waits until a script answers true.
    pub async fn until(&self, what: &str, condition: &str) {
        let script = format!("return Boolean({condition});");
        let from = std::time::Instant::now();
        while self.eval(&script).await != true {
            if from.elapsed() > super::LONG {
                let page = self.eval("return document.body.innerText;").await;
                panic!("never: {what}; the page says {}", page.as_str().unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Clicks the first element that fits.
    pub async fn click(&self, css: &str) {
        self.client
            .find(Locator::Css(css))
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"))
            .click()
            .await
            .unwrap();
    }

    /// Presses keys, wherever the focus is.
    pub async fn keys(&self, keys: &str) {
        let body = self.client.find(Locator::Css("body")).await.unwrap();
        body.send_keys(keys).await.unwrap();
    }

    /// Types into a field.
    pub async fn fill(&self, css: &str, text: &str) {
        let field = self
            .client
            .find(Locator::Css(css))
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"));
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// The picture of a window that is as high as its page, where `DLOCK_CONSOLE_IMAGES` names a directory for it.
    pub async fn picture(&self, name: &str) {
        let Some(dir) = std::env::var_os("DLOCK_CONSOLE_IMAGES") else {
            return;
        };
        let (width, height) = self.client.get_window_size().await.unwrap();
        let whole = self.eval("return document.documentElement.scrollHeight;").await;
        let chrome = self.eval("return window.outerHeight - window.innerHeight;").await;
        let whole = whole.as_u64().unwrap() + chrome.as_u64().unwrap();
        let high = u32::try_from(whole).unwrap().clamp(400, 2_400);
        self.client
            .set_window_size(u32::try_from(width).unwrap(), high)
            .await
            .unwrap();
        let png = self.client.screenshot().await.unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.png")), png).unwrap();
        self.client
            .set_window_size(u32::try_from(width).unwrap(), u32::try_from(height).unwrap())
            .await
            .unwrap();
    }

    pub async fn close(self) {
        self.client.close().await.unwrap();
    }
}
