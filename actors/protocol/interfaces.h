#pragma once
#include "actors/protocol/messages.h"

#include <caf/typed_actor.hpp>

#include <functional>
#include <vector>

namespace sgactor::actors {

/// Typed interfaces of the actors of one process. An actor sees of another only the part it needs.

/// Takes its turn on a lane: worker, feeder, subgraphs.
using LaneMemberActor = caf::typed_actor<caf::reacts_to<LaneToken>>;
/// Puts work on streams and hears of its completion: worker, feeder, subgraphs, writer.
using LauncherActor = caf::typed_actor<caf::reacts_to<WorkComplete>>;

using PoolActor = caf::typed_actor<caf::reacts_to<Wire>, caf::reacts_to<LeaseRequest>,
                                   caf::reacts_to<ReleaseLease>, caf::reacts_to<LaneProgress>,
                                   caf::reacts_to<AskPoolReport>>;

using SubgraphActor = caf::typed_actor<caf::reacts_to<Wire>, caf::reacts_to<HandleReady>,
                                       caf::reacts_to<SlotsGranted>, caf::reacts_to<LaneToken>,
                                       caf::reacts_to<WorkComplete>>;

using FeederActor = caf::typed_actor<caf::reacts_to<Wire>, caf::reacts_to<BatchPrepared>,
                                     caf::reacts_to<SlotsGranted>, caf::reacts_to<LaneToken>,
                                     caf::reacts_to<WorkComplete>>;

using WriterActor = caf::typed_actor<caf::reacts_to<TakeSnapshot>, caf::reacts_to<WorkComplete>,
                                     caf::reacts_to<SnapshotWritten>>;

using WorkerActor = caf::typed_actor<
    caf::reacts_to<BeginStep>, caf::reacts_to<Commit>, caf::reacts_to<BeginValidation>,
    caf::reacts_to<TakeSnapshot>, caf::reacts_to<SnapshotEnqueued>, caf::reacts_to<Finish>,
    caf::reacts_to<LaneToken>, caf::reacts_to<WorkComplete>, caf::reacts_to<StepPrepared>,
    caf::reacts_to<NumbersRead>, caf::reacts_to<InputsKept>, caf::reacts_to<PoolReport>,
    caf::reacts_to<Rejoined>, caf::reacts_to<Resume>, caf::reacts_to<Recheck>,
    caf::reacts_to<GradientChecked>>;

struct Adopt;

using CoordinatorActor =
    caf::typed_actor<caf::reacts_to<RankReady>, caf::reacts_to<Vote>,
                     caf::reacts_to<JournalWritten>, caf::reacts_to<StepDone>,
                     caf::reacts_to<ValidationDone>, caf::reacts_to<SnapshotEnqueued>,
                     caf::reacts_to<SnapshotWritten>, caf::reacts_to<CheckpointCommitted>,
                     caf::reacts_to<RankFinished>, caf::reacts_to<FaultReport>,
                     caf::reacts_to<Fence>, caf::reacts_to<Adopt>>;

/// Whoever looks after processes -> coordinator: another worker, which `spawn` stands for, takes
/// over ranks of the last Fence, in its generation.
struct Adopt {
  std::function<WorkerActor(caf::local_actor* parent, const CoordinatorActor& coordinator)> spawn;
};

/// The actors of one program of one logical rank.
struct Routes {
  int32_t rank = 0;
  int64_t incarnation = 1;
  WorkerActor worker;
  PoolActor pool;
  FeederActor feeder;
  std::vector<SubgraphActor> subgraphs;  ///< index: launch
};

}  // namespace sgactor::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::actors::Adopt)
