//! A small OpenTelemetry collector: accepts OTLP over HTTP and keeps the requests.

use std::{collections::BTreeMap, io::Read as _, sync::Arc};

use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{HistogramDataPoint, Metric, metric::Data},
    trace::v1::Span,
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// One received request.
pub struct Received {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// The decompressed body.
    pub body: Vec<u8>,
}

#[derive(Clone)]
pub struct Collector {
    pub endpoint: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = received.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, kept.clone()));
            }
        });
        Self { endpoint, received }
    }

    /// Whether any request contains these bytes.
    pub fn holds(&self, needle: &str) -> bool {
        let received = self.received.lock();
        received.iter().any(|request| {
            request
                .body
                .windows(needle.len())
                .any(|window| window == needle.as_bytes())
        })
    }

    pub fn requests(&self) -> usize {
        self.received.lock().len()
    }

    /// The headers of the first request to a path.
    pub fn headers(&self, path: &str) -> BTreeMap<String, String> {
        let received = self.received.lock();
        received
            .iter()
            .find(|request| request.path == path)
            .map(|request| request.headers.clone())
            .unwrap_or_default()
    }

    /// All spans, and the attributes of their resource.
    pub fn spans(&self) -> (Vec<Span>, BTreeMap<String, String>) {
        let mut spans = Vec::new();
        let mut resource = BTreeMap::new();
        for request in self
            .received
            .lock()
            .iter()
            .filter(|request| request.path == "/v1/traces")
        {
            for of_resource in ExportTraceServiceRequest::decode(&*request.body)
                .unwrap()
                .resource_spans
            {
                resource = attributes(&of_resource.resource.unwrap().attributes);
                spans.extend(
                    of_resource
                        .scope_spans
                        .into_iter()
                        .flat_map(|scope| scope.spans),
                );
            }
        }
        (spans, resource)
    }

    /// The last value of each metric.
    pub fn metrics(&self) -> BTreeMap<String, Metric> {
        let mut metrics = BTreeMap::new();
        for request in self
            .received
            .lock()
            .iter()
            .filter(|request| request.path == "/v1/metrics")
        {
            let decoded = ExportMetricsServiceRequest::decode(&*request.body)
                .unwrap()
                .resource_metrics;
            let all = decoded
                .into_iter()
                .flat_map(|of_resource| of_resource.scope_metrics)
                .flat_map(|scope| scope.metrics);
            metrics.extend(all.map(|metric| (metric.name.clone(), metric)));
        }
        metrics
    }
}

/// The points of a histogram, by their attributes.
pub fn histogram(metric: &Metric) -> Vec<(BTreeMap<String, String>, HistogramDataPoint)> {
    let Some(Data::Histogram(histogram)) = &metric.data else {
        panic!("{} is no histogram", metric.name)
    };
    histogram
        .data_points
        .iter()
        .map(|point| (attributes(&point.attributes), point.clone()))
        .collect()
}

/// Attributes as text: `"x"`, `true`, `[a]`.
pub fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    fn text(value: &Value) -> String {
        match value {
            Value::StringValue(text) => text.clone(),
            Value::BoolValue(yes) => yes.to_string(),
            Value::IntValue(number) => number.to_string(),
            Value::DoubleValue(number) => number.to_string(),
            Value::ArrayValue(list) => {
                let items: Vec<_> = list
                    .values
                    .iter()
                    .filter_map(|item| item.value.as_ref())
                    .map(text)
                    .collect();
                format!("[{}]", items.join(","))
            }
            other => panic!("{other:?}"),
        }
    }
    let pair =
        |pair: &KeyValue| Some((pair.key.clone(), text(pair.value.as_ref()?.value.as_ref()?)));
    let all: Vec<_> = pairs.iter().filter_map(pair).collect();
    let map: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(map.len(), all.len(), "an attribute twice: {all:?}");
    map
}

async fn serve(mut stream: TcpStream, received: Arc<Mutex<Vec<Received>>>) {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
        let mut lines = text.lines();
        let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
        let pair = |line: &str| {
            line.split_once(": ")
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        };
        let headers: BTreeMap<_, _> = lines.filter_map(pair).collect();
        let length: usize = headers["content-length"].parse().unwrap();
        while bytes.len() < head + length {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let mut body = bytes[head..head + length].to_vec();
        bytes.drain(..head + length);
        if headers
            .get("content-encoding")
            .is_some_and(|encoding| encoding == "gzip")
        {
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&*body)
                .read_to_end(&mut unpacked)
                .unwrap();
            body = unpacked;
        }
        received.lock().push(Received {
            path,
            headers,
            body,
        });
        let answer =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}
