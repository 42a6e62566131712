// Whether this process is one of several, and the group they make.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/group.h"

namespace bhyt::parallel {

// How many processes MPI launched with this one, itself among them, as far as its launcher says.
int launched_ranks();

// The group that MPI launched this process in, opened at the first call; null: it was launched on its own. Error where MPI launched it with
// others and the library that talks to MPI is not there.
Group* group();
Group* opened();  // the same; null where nobody asked for it yet

// Seconds that ranks wait for each other before the first step: the first one packs texts, all compare weights with their checksums.
constexpr double kSetupTimeout = 6 * 3600;

// Before an Error that all ranks throw, or an exit code that all have: the first one tells it, and all end in good order. False: it did not
// end them after all.
void on_all_ranks(bool ends = true);
bool ends_all();  // the end of this process is one of all ranks
bool told_by_another();

// For the end of the process. An end that is not good ends the other ranks, too.
void leave(int code);

// Every rank's text, by rank.
std::vector<std::string> gather_texts(Group& group, const std::string& own);
std::vector<std::int64_t> gather_numbers(Group& group, std::int64_t own);
void barrier(Group& group);

// Runs work on every rank, and goes on when it went well on all; else all throw the Error of the first rank on which it did not, with its
// rank and host where others have another, or none. What throws is no part of a collective.
void together(Group& group, const std::function<void()>& work);
void together(Group* group, const std::function<void()>& work);  // null: this process is on its own

// Of several ranks on a host each has a GPU of its own, and its share of the cores. `name` as parse_device takes it, `key` what names it.
// All ranks ask for their device at once; UsageError where two would share a GPU and may not; `otherwise` says what else could be done.
Device own_device(Group& group, const std::string& name, const std::string& key, bool share_gpu = false, const std::string& otherwise = "");
int own_threads(const Group& group, int asked);  // asked 0: the share

// The environment of a process that is started as one of its own: without what MPI's launchers say to theirs.
std::vector<std::string> environment_of_one();

}  // namespace bhyt::parallel
