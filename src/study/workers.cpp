#include "study/workers.h"

#include <algorithm>
#include <thread>

#include "core/schema.h"
#include "core/signals.h"
#include "parallel/launch.h"

namespace bhyt::study {

namespace {

using schema::Json;

// What the first rank says in a meeting.
std::string orders_text(const std::vector<RunOrder>& orders, int signal, bool end) {
  Json list = Json::array();
  for (const RunOrder& o : orders) list.push_back({{"run", o.run}, {"rank", o.rank}, {"args", o.args}, {"log", o.log}, {"share", o.share}});
  return Json{{"orders", list}, {"signal", signal}, {"end", end}}.dump();
}

std::vector<RunOrder> read_orders(const Json& said) {
  std::vector<RunOrder> out;
  for (const Json& o : said.at("orders"))
    out.push_back({.run = o.at("run"), .rank = o.at("rank"), .args = o.at("args"), .log = o.at("log"), .share = o.at("share")});
  return out;
}

// What the others say.
std::string ends_text(const std::vector<RunEnd>& ends, int signal) {
  Json list = Json::array();
  for (const RunEnd& e : ends) list.push_back({e.run, e.code});
  return Json{{"ends", list}, {"signal", signal}}.dump();
}

}  // namespace

int Workers::on_host_of(int rank) const {
  int count = 0;
  for (int other = 0; other < ranks(); ++other) count += !group_ || group_->host(other) == group_->host(rank);
  return count;
}

std::vector<RunEnd> Workers::ended_here() {
  std::vector<RunEnd> ends;
  for (auto& [run, child] : children_)
    if (child.ended()) ends.push_back({run, child.code()});
  for (const RunEnd& e : ends) children_.erase(e.run);
  return ends;
}

void Workers::obey(const std::vector<RunOrder>& orders, int signal) {
  const int own = group_ ? group_->rank() : 0;
  const int cores = several() ? parallel::own_threads(*group_, 0) : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const RunOrder& o : orders) {
    if (o.rank != own) continue;
    std::vector<std::string> args = o.args;
    if (!device_.empty()) args.push_back("run.device=" + device_);
    if (o.share > 1 || (o.share == 1 && several())) args.push_back("run.threads=" + std::to_string(std::max(1, cores / o.share)));
    children_.emplace(o.run, Child(args, "", o.log));
  }
  if (signal == 0) return;
  for (const auto& [run, child] : children_) child.send(signal);
}

std::vector<RunEnd> Workers::meet() {
  std::vector<RunEnd> ends = ended_here();
  const std::vector<RunOrder> orders = std::exchange(orders_, {});
  const int signal = std::exchange(signal_, 0);
  if (several()) {
    const std::vector<std::string> said = parallel::gather_texts(*group_, orders_text(orders, signal, false));
    for (std::size_t rank = 1; rank < said.size(); ++rank) {
      const Json other = Json::parse(said[rank]);
      for (const Json& e : other.at("ends")) ends.push_back({e.at(0), e.at(1)});
      heard_ = std::max(heard_, other.at("signal").get<int>());
    }
  }
  obey(orders, signal);
  return ends;
}

void Workers::dismiss() {
  if (several()) parallel::gather_texts(*group_, orders_text({}, 0, true));
}

void Workers::serve() {
  const StopSignals stop("", StopSignals::Second::quits);
  for (;;) {
    const Json said = Json::parse(parallel::gather_texts(*group_, ends_text(ended_here(), stop.received())).front());
    if (said.at("end")) return;
    obey(read_orders(said), said.at("signal"));
  }
}

}  // namespace bhyt::study
