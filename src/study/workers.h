// The processes of a sweep's runs: children of this process, or of the ranks of a group. The first rank says what is started where and
// hears of every end; the others do as they are told.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/group.h"
#include "study/process.h"

namespace bhyt::study {

struct RunOrder {
  std::size_t run = 0;
  int rank = 0;
  std::vector<std::string> args;
  std::string log;
  int share = 0;  // it has that part of its rank's cores; 0: its config says how many
};

struct RunEnd {
  std::size_t run = 0;
  int code = 0;
};

class Workers {
 public:
  // device: of this rank's runs, "" where their configs say it.
  Workers(parallel::Group* group, std::string device) : group_(group), device_(std::move(device)) {}

  int ranks() const { return group_ ? group_->size() : 1; }
  int on_host_of(int rank) const;  // ranks on the same host, itself among them

  // Of the first rank: what is to be done is done in the next meeting.
  void start(RunOrder order) { orders_.push_back(std::move(order)); }
  void tell(int signal) { signal_ = signal; }  // all runs
  std::vector<RunEnd> meet();                  // those that have ended since the last one
  int signalled() const { return heard_; }     // a signal that another rank received, or 0
  void dismiss();                              // the other ranks have nothing more to do

  void serve();  // of the others: until they are dismissed

 private:
  bool several() const { return ranks() > 1; }
  void obey(const std::vector<RunOrder>& orders, int signal);
  std::vector<RunEnd> ended_here();

  parallel::Group* group_;
  std::string device_;
  std::map<std::size_t, Child> children_;  // of this rank, by run
  std::vector<RunOrder> orders_;
  int signal_ = 0, heard_ = 0;
};

}  // namespace bhyt::study
