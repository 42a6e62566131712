#include "model/llama2c.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/check.h"
#include "model/safetensors.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

// dim, hidden, layers, heads, KV heads, vocabulary (negative: its own LM head), positions.
using Header = std::array<std::int32_t, 7>;
constexpr std::int32_t kNewMagic = 0x616b3432;  // "ak42": the later versions

ModelConfig config_of(const Header& h) {
  ModelConfig c;
  c.d = h[0];
  c.mlp = h[1];
  c.layers = h[2];
  c.heads = h[3];
  c.kv_heads = h[4];
  c.tied = h[5] > 0;
  c.vocab = h[5] > 0 ? h[5] : -static_cast<std::int64_t>(h[5]);
  c.max_positions = h[6];
  check(c.heads > 0 && c.d % c.heads == 0, "dim {} is not a multiple of {} heads", c.d, c.heads);
  c.head_dim = c.d / c.heads;
  c.rope_theta = 10000;
  c.eps = 1e-5;
  c.bos = 1;
  c.eos = {2};
  c.norm.method = "rmsnorm";
  validate(c);
  return c;
}

// A file of `bytes` in its order: every kind of weight for all layers before the next kind. Throws unless it takes exactly these bytes.
void lay_out(const ModelConfig& c, std::size_t bytes, std::vector<Llama2cFile::Weight>& out) {
  std::size_t at = sizeof(Header);
  // Stops where the file ends: what a header asks for could take 2⁶⁴ bytes and more.
  const auto skip = [&](std::int64_t n) {
    at += static_cast<std::size_t>(n) * 4;
    check(at <= bytes, "its header asks for {} bytes or more, the file holds {}", at, bytes);
  };
  const auto one = [&](std::string name, std::vector<std::int64_t> shape, std::int64_t heads = 0) {
    std::int64_t n = 1;
    for (auto s : shape) n *= s;
    out.push_back({std::move(name), std::move(shape), heads, at});
    skip(n);
  };
  const auto layers = [&](const char* name, const std::vector<std::int64_t>& shape, std::int64_t heads = 0) {
    for (std::int64_t i = 0; i < c.layers; ++i) one(fmt::format("model.layers.{}.{}.weight", i, name), shape, heads);
  };
  one("model.embed_tokens.weight", {c.vocab, c.d});
  layers("input_layernorm", {c.d});
  layers("self_attn.q_proj", {c.q_width(), c.d}, c.heads);
  layers("self_attn.k_proj", {c.kv_width(), c.d}, c.kv_heads);
  layers("self_attn.v_proj", {c.kv_width(), c.d});
  layers("self_attn.o_proj", {c.d, c.q_width()});
  layers("post_attention_layernorm", {c.d});
  layers("mlp.gate_proj", {c.mlp, c.d});
  layers("mlp.down_proj", {c.d, c.mlp});
  layers("mlp.up_proj", {c.mlp, c.d});
  one("model.norm.weight", {c.d});
  skip(c.max_positions * c.head_dim);  // tables of cosines and sines
  if (!c.tied) one("lm_head.weight", {c.vocab, c.d});
  check(at == bytes, "its header asks for {} bytes, the file holds {}", at, bytes);
}

Header header_of(const char* data, std::size_t bytes) {
  Header h{};
  check(bytes >= sizeof(Header), "{} bytes are too few for llama2.c's header", bytes);
  std::memcpy(h.data(), data, sizeof(Header));
  check(h[0] != kNewMagic, "a llama2.c file of version {}; only the legacy layout (export version 0) is read", h[1]);
  return h;
}

}  // namespace

void Llama2cFile::parse(const std::string& name) try {
  config_ = config_of(header_of(data_, bytes_));
  lay_out(config_, bytes_, weights_);
} catch (const Error& e) {
  throw Error(fmt::format("{}: not a llama2.c checkpoint: {}", name, e.what()));
}

Llama2cFile::Llama2cFile(const void* data, std::size_t bytes, const std::string& name)
    : data_(static_cast<const char*>(data)), bytes_(bytes) {
  parse(name);
}

Llama2cFile::Llama2cFile(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "{}: cannot open: {}", file.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) bytes_ = static_cast<std::size_t>(info.st_size);
  void* map = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int why = errno;
  ::close(fd);
  check(map != MAP_FAILED, "{}: cannot map: {}", file.string(), std::strerror(why));
  map_ = map;
  data_ = static_cast<const char*>(map);
  try {
    parse(file.string());
  } catch (...) {
    if (map_) ::munmap(map_, bytes_);  // the destructor of a half-made object does not run
    throw;
  }
}

Llama2cFile::~Llama2cFile() {
  if (map_) ::munmap(map_, bytes_);
}

bool Llama2cFile::recognised(const fs::path& file) {
  std::error_code ignored;
  const auto bytes = fs::file_size(file, ignored);
  char head[sizeof(Header)];
  std::ifstream in(file, std::ios::binary);
  if (ignored || !in.read(head, sizeof head)) return false;
  try {
    std::vector<Weight> weights;
    lay_out(config_of(header_of(head, sizeof head)), bytes, weights);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void Llama2cFile::rows(const Weight& w, std::int64_t first, std::int64_t n, float* out) const {
  const std::int64_t columns = w.shape.size() == 2 ? w.shape[1] : 1;
  check(first >= 0 && n >= 0 && first <= w.shape[0] - n, "[llama2.c] expected rows within {}, got {} from {}", w.shape[0], n, first);
  const auto bytes = static_cast<std::size_t>(columns) * 4;
  const auto at = [&](std::int64_t row) { return data_ + w.at + static_cast<std::size_t>(row) * bytes; };
  if (w.heads == 0) {
    std::memcpy(out, at(first), static_cast<std::size_t>(n) * bytes);
    return;
  }
  // Within a head, row j < D/2 was the first of pair j, row j + D/2 the second.
  const std::int64_t head_dim = w.shape[0] / w.heads, half = head_dim / 2;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = first + i, in_head = row % head_dim;
    const std::int64_t from = row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
    std::memcpy(out + i * columns, at(from), bytes);
  }
}

void Llama2cFile::release(const Weight& w) const {
  std::size_t bytes = 4;
  for (auto s : w.shape) bytes *= static_cast<std::size_t>(s);
  if (map_) release_pages(data_ + w.at, bytes);
}

}  // namespace bhyt
